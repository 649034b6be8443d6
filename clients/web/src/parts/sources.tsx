/** The source of a citation chip, and the card that shows it. */

import { useLayoutEffect, useRef } from "preact/hooks";
import type { CitationEvent, TurnView } from "../../../js/src/index.ts";
import { useRenderer } from "../text/load.ts";
import { headingIn } from "../format.ts";

/** A source to open: a citation, a hit without a citation, or a whole document. */
export type Source = Pick<
  CitationEvent,
  "document_id" | "title" | "url" | "heading" | "page_number" | "supporting_quote" | "source_start" | "source_end"
> & {
  index?: number;
};

/** Returns the source of a chip: the n-th chip of a number is the n-th citation of that number. */
export function sourceOfChip(chip: HTMLElement, view: TurnView): Source | undefined {
  const index = Number(chip.dataset.cite ?? chip.dataset.source);
  const cited = view.citations.filter((citation) => citation.index === index);
  cited.sort((first, other) => (first.answer_start ?? 0) - (other.answer_start ?? 0));
  const chips = [...(chip.closest(".answer")?.querySelectorAll(`.cite[data-cite="${index}"]`) ?? [])];
  const match = (cited.length === chips.length ? cited[chips.indexOf(chip)] : undefined) ?? cited[0];
  if (match) return match;
  const hit = view.steps.flatMap((step) => step.hits ?? []).find((candidate) => candidate.index === index);
  return hit && { ...hit, supporting_quote: hit.text };
}

export interface Peek {
  chip: HTMLElement;
  source: Source;
}

const GAP = 8;

/** The card of a chip, shown on hover, focus or touch. */
export function PeekCard({
  peek,
  onOpen,
  onLeave,
  onStay,
}: {
  peek: Peek;
  onOpen: () => void;
  onLeave: () => void;
  onStay: () => void;
}) {
  const card = useRef<HTMLDivElement>(null);
  const renderer = useRenderer();
  useLayoutEffect(() => {
    const { style, offsetWidth, offsetHeight } = card.current!;
    const at = peek.chip.getBoundingClientRect();
    const left = Math.max(GAP, Math.min(at.left + at.width / 2 - offsetWidth / 2, innerWidth - offsetWidth - GAP));
    const above = at.top - offsetHeight - GAP;
    style.left = `${left}px`;
    style.top = `${above > GAP ? above : at.bottom + GAP}px`;
    peek.chip.setAttribute("aria-describedby", "peek");
    return () => peek.chip.removeAttribute("aria-describedby");
  }, [peek]);
  const { source } = peek;
  return (
    <div class="peek" id="peek" ref={card} data-testid="peek" onMouseEnter={onStay} onMouseLeave={onLeave}>
      <strong>{source.title ?? source.document_id}</strong>
      <Where source={source} />
      {source.supporting_quote && (
        <blockquote
          class="prose"
          ref={(quote) => {
            if (renderer) quote?.replaceChildren(renderer.markdownFragment(source.supporting_quote!));
          }}
        />
      )}
      <button type="button" class="quiet" tabIndex={-1} data-testid="peek-open" onClick={onOpen}>
        Open the document
      </button>
    </div>
  );
}

function Where({ source }: { source: Source }) {
  const parts = [headingIn(source), source.page_number ? `page ${source.page_number}` : ""];
  const text = parts.filter(Boolean).join(" · ");
  return text ? <div class="faint small">{text}</div> : null;
}
