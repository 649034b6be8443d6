/** One message and everything that answers it. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { CitationEvent, TurnView } from "../../../js/src/index.ts";
import type { Entry } from "../entries.ts";
import type { Conversation } from "../conversation.ts";
import { copyText } from "../copying.ts";
import { Icon, IconButton } from "../icons.tsx";
import { memo } from "../memo.tsx";
import { turnAddress } from "../server.ts";
import { AnswerPaper } from "../text/answer.ts";
import { count, duration, outcomeWord, placeIn } from "../words.ts";
import { Approval } from "./approvals.tsx";
import { Asked, type AskedProps } from "./asked.tsx";
import { Steps } from "./steps.tsx";

interface TurnProps extends AskedProps {
  agentName: string | null;
  mayDecide: boolean;
}

export const TurnItem = /* @__PURE__ */ memo(DrawnTurn, ({ entry, place, places, agentName }: TurnProps) => [
  entry,
  place,
  places,
  agentName,
]);

function DrawnTurn({ entry, conversation, place, places, agentName, mayDecide }: TurnProps) {
  const { view } = entry;
  const isBegun = entry.phase === "running" || entry.phase === "ended";
  return (
    <div
      class="turn"
      data-testid="turn"
      data-turn-id={entry.turnId ?? undefined}
      data-phase={entry.phase}
      data-outcome={view.outcome}
    >
      <Asked entry={entry} conversation={conversation} place={place} places={places} />
      {isBegun && (
        <article class="answer" aria-label={`Answer${agentName ? ` of ${agentName}` : ""}`}>
          {agentName && <div class="who">{agentName}</div>}
          <Reading view={view} />
          {!view.outcome &&
            view.approvals.map((asked) => (
              <Approval key={asked.call_id} turnId={view.turnId} asked={asked} mayDecide={mayDecide} />
            ))}
          <Ending entry={entry} conversation={conversation} />
        </article>
      )}
    </div>
  );
}

/** What stands in an answer, as far as it has come. */
export function Reading({ view }: { view: TurnView }) {
  return (
    <>
      <Reasoning view={view} />
      <Steps view={view} />
      <AnswerText view={view} />
    </>
  );
}

const Reasoning = /* @__PURE__ */ memo(Thoughts, ({ view }: { view: TurnView }) => [
  view.reasoning,
  view.outcome,
  !view.text,
]);

function Thoughts({ view }: { view: TurnView }) {
  if (!view.reasoning) return null;
  const isThinking = !view.outcome && !view.text;
  return (
    <details class="reasoning" data-testid="reasoning">
      <summary>
        <Icon name="thought" />
        <span class={isThinking ? "shimmer" : ""}>{isThinking ? "Thinking" : "Thought about it"}</span>
      </summary>
      <div class="thoughts">{view.reasoning}</div>
    </details>
  );
}

function AnswerText({ view }: { view: TurnView }) {
  const place = useRef<HTMLDivElement>(null);
  const paper = useRef<AnswerPaper | null>(null);
  const hasCites = view.citations.length > 0 || view.steps.some((step) => !!step.hits?.length);
  useLayoutEffect(() => {
    paper.current ??= new AnswerPaper(place.current!);
    paper.current.show(view.text, hasCites);
  }, [view.text, hasCites]);
  return <div class={`prose ${view.outcome ? "" : "live"}`} data-testid="answer" ref={place} />;
}

function Ending({ entry, conversation }: { entry: Entry; conversation: Conversation }) {
  const { view } = entry;
  if (!view.outcome) return null;
  const again = () => conversation.send(entry.message, entry.agent, entry.parent ?? "");
  const tokens = view.usage?.output_tokens;
  const total = view.timings.total_ms;
  return (
    <>
      {view.outcome === "cancelled" && <p class="note">You stopped this answer{view.text ? " here" : ""}.</p>}
      {(view.outcome === "failed" || view.outcome === "interrupted") && (
        <div class="failure" role="alert" data-testid="failure">
          <strong>{outcomeWord(view.outcome)}.</strong>{" "}
          {view.error?.error ?? view.reason ?? "The turn did not complete."}{" "}
          <button type="button" class="quiet" onClick={again}>
            Try again
          </button>
        </div>
      )}
      <Sources citations={view.citations} />
      <footer class="answer-foot">
        <span class="tools">
          {view.text && <CopyButton text={view.text} />}
          <IconButton name="again" label="Answer again" testid="retry" onClick={again} />
          <a
            class="icon-button"
            href={turnAddress(view.turnId)}
            title="See how it went, event by event"
            aria-label="Inspect this turn"
            data-testid="inspect"
          >
            <Icon name="wave" />
          </a>
        </span>
        <span class="faint">
          {[total === undefined ? "" : duration(total), tokens === undefined ? "" : count(tokens, "token")]
            .filter(Boolean)
            .join(" · ")}
        </span>
      </footer>
    </>
  );
}

function CopyButton({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    if (!(await copyText(text))) return;
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <IconButton
      name={isCopied ? "review" : "copy"}
      label={isCopied ? "Copied" : "Copy the answer"}
      testid="copy"
      onClick={copy}
    />
  );
}

function Sources({ citations }: { citations: readonly CitationEvent[] }) {
  const first = new Map<number, CitationEvent>();
  for (const citation of citations) if (!first.has(citation.index)) first.set(citation.index, citation);
  if (!first.size) return null;
  return (
    <ul class="sources" aria-label="Sources" data-testid="sources">
      {[...first.values()].map((citation) => (
        <li key={citation.index}>
          <button type="button" data-source={citation.index}>
            <span class="hit-index">{citation.index}</span>
            <span class="source-title">{citation.title ?? citation.document_id}</span>
            {placeIn(citation) && <span class="faint source-heading">{placeIn(citation)}</span>}
          </button>
        </li>
      ))}
    </ul>
  );
}
