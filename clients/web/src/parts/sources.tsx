/** What a chip in an answer stands on: a card beside the chip, and the document opened at the passage. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { CitationEvent, DocumentText, TurnView } from "../../../js/src/index.ts";
import { IconButton } from "../icons.tsx";
import { client, isStatus, told } from "../server.ts";
import { documentFragment } from "../text/passages.ts";

/** What can be opened: a citation, or a hit that none of the citations names, or a whole document. */
export type Source = Pick<CitationEvent, "document_id" | "title" | "url" | "heading" | "page_number" | "supporting_quote" | "source_start" | "source_end"> & {
  index?: number;
};

/** Which source a chip means: the n-th chip of a number is the n-th citation of that number. */
export function sourceOfChip(chip: HTMLElement, view: TurnView): Source | undefined {
  const index = Number(chip.dataset.cite ?? chip.dataset.source);
  const cited = view.citations.filter((citation) => citation.index === index);
  cited.sort((one, other) => (one.answer_start ?? 0) - (other.answer_start ?? 0));
  const chips = [...(chip.closest(".answer")?.querySelectorAll(`.cite[data-cite="${index}"]`) ?? [])];
  const found = (cited.length === chips.length ? cited[chips.indexOf(chip)] : undefined) ?? cited[0];
  if (found) return found;
  const hit = view.steps.flatMap((step) => step.hits ?? []).find((one) => one.index === index);
  return hit && { ...hit, supporting_quote: hit.text };
}

export interface Peek {
  chip: HTMLElement;
  source: Source;
}

const GAP = 8;

/** Shown by hovering or focusing a chip; on a touch screen by touching it. */
export function PeekCard({ peek, onOpen, onLeave, onStay }: { peek: Peek; onOpen: () => void; onLeave: () => void; onStay: () => void }) {
  const card = useRef<HTMLDivElement>(null);
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
      {source.supporting_quote && <blockquote>{source.supporting_quote}</blockquote>}
      <button type="button" class="quiet" tabIndex={-1} data-testid="peek-open" onClick={onOpen}>
        Open the document at this passage
      </button>
    </div>
  );
}

function Where({ source }: { source: Source }) {
  const said = [source.heading !== source.title ? source.heading : "", source.page_number ? `page ${source.page_number}` : ""];
  const text = said.filter(Boolean).join(" · ");
  return text ? <div class="faint small">{text}</div> : null;
}

export function SourcePanel({ source, onClose }: { source: Source; onClose: () => void }) {
  const [found, setFound] = useState<DocumentText | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const paper = useRef<HTMLDivElement>(null);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), [source]);
  useEffect(() => {
    let isWanted = true;
    setFound((now) => (now?.id === source.document_id ? now : null));
    setProblem(null);
    client.documents.get(source.document_id).then(
      (document) => isWanted && setFound(document),
      (error: unknown) => isWanted && setProblem(isStatus(error, 404) ? "This document is no longer there." : told(error)),
    );
    return () => void (isWanted = false);
  }, [source.document_id]);
  useLayoutEffect(() => {
    if (!found?.text || !paper.current) return;
    const isMarkdown = found.format === "markdown" || /\.(md|markdown|mdx)$/i.test(found.name);
    paper.current.replaceChildren(documentFragment(found.text, isMarkdown, source.source_start, source.source_end));
    const mark = paper.current.querySelector("mark");
    if (mark) mark.scrollIntoView({ block: "center" });
    else paper.current.parentElement!.scrollTop = 0;
  }, [found, source]);
  return (
    <section class="panel-inner" aria-labelledby="source-title" data-testid="source">
      <header class="panel-head">
        <div>
          <h2 id="source-title" tabIndex={-1} ref={heading}>
            {found?.title ?? source.title ?? "Document"}
          </h2>
          <div class="faint small">{found ? `${found.name}${source.page_number ? ` · page ${source.page_number}` : ""}` : ""}</div>
        </div>
        <IconButton name="close" label="Close the document" testid="source-close" onClick={onClose} />
      </header>
      <div class="panel-body" tabIndex={0} role="region" aria-label="The document's text">
        {problem && (
          <>
            <p role="alert" class="problem">{problem}</p>
            {source.supporting_quote && <blockquote>{source.supporting_quote}</blockquote>}
          </>
        )}
        {!found && !problem && <div class="skeleton" aria-label="Loading" />}
        <div class="prose document" ref={paper} />
      </div>
    </section>
  );
}
