/** One turn: the question and its answer. */

import { Fragment } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { type CitationEvent, type InputView, sliceText, type TurnView } from "../../../js/src/index.ts";
import type { Entry } from "../entries.ts";
import type { Conversation } from "../conversation.ts";
import { copyText } from "../clipboard.ts";
import { Icon, IconButton } from "../icons.tsx";
import { memo } from "../memo.tsx";
import { turnAddress } from "../server.ts";
import { loadRenderer, type Renderer, useRenderer } from "../text/load.ts";
import { count, duration, outcomeText, headingIn, provenance } from "../format.ts";
import { Approval } from "./approvals.tsx";
import { AskedQuestion } from "./asked.tsx";
import { FeedbackButtons } from "./feedback.tsx";
import { Question, type QuestionProps } from "./question.tsx";
import { type Branch, Steps } from "./steps.tsx";

interface TurnProps extends QuestionProps {
  agentName: string | null;
  mayDecide: boolean;
}

export const TurnItem = /* @__PURE__ */ memo(TurnArticle, ({ entry, version, versions, agentName }: TurnProps) => [
  entry,
  version,
  versions,
  agentName,
]);

function TurnArticle({ entry, conversation, version, versions, agentName, mayDecide }: TurnProps) {
  const { view } = entry;
  const hasStarted = entry.phase === "running" || entry.phase === "ended";
  return (
    <div
      class="turn"
      data-testid="turn"
      data-turn-id={entry.turnId ?? undefined}
      data-phase={entry.phase}
      data-outcome={view.outcome}
    >
      <Question entry={entry} conversation={conversation} version={version} versions={versions} />
      {hasStarted && (
        <article class="answer" aria-label={`Answer${agentName ? ` of ${agentName}` : ""}`}>
          {agentName && <div class="who">{agentName}</div>}
          <Origin view={view} />
          <AnswerContent
            view={view}
            startedAt={entry.startedAt}
            onBranch={(position) => void conversation.branch(entry, position)}
          />
          {!view.outcome &&
            view.approvals.map((request) => (
              <Approval key={request.call_id} turnId={view.turnId} request={request} mayDecide={mayDecide} />
            ))}
          {view.questions.map((question) => (
            <AskedQuestion key={question.id} turnId={view.turnId} question={question} mayAnswer={mayDecide} />
          ))}
          <Ending entry={entry} conversation={conversation} />
        </article>
      )}
    </div>
  );
}

/** One line about each: the turn was branched from another one, and it was continued by another worker. */
function Origin({ view }: { view: TurnView }) {
  return (
    <>
      {view.forkedFrom && (
        <p class="note" data-testid="forked">
          Branched from <a href={turnAddress(view.forkedFrom)}>another turn</a> at position {view.forkedAt}.
        </p>
      )}
      {view.restarts > 0 && (
        <p class="note" data-testid="continued" role="status">
          {view.outcome ? "Continued after a restart." : "Continues after a restart."}
        </p>
      )}
    </>
  );
}

/** The content of an answer so far: reasoning, steps and text. */
export function AnswerContent(props: { view: TurnView; startedAt?: number | null; onBranch?: Branch }) {
  const { view, startedAt, onBranch } = props;
  return (
    <>
      <Reasoning view={view} />
      <Steps view={view} startedAt={startedAt ?? null} onBranch={onBranch} />
      {answerPieces(view).map(({ text, input }, index, { length }) => (
        <Fragment key={index}>
          <AnswerText view={view} text={text} isLast={index === length - 1} />
          {input && (
            <div class="asked">
              <div class="bubble" data-testid="input">
                {input.content}
              </div>
            </div>
          )}
        </Fragment>
      ))}
    </>
  );
}

const Reasoning = /* @__PURE__ */ memo(ReasoningText, ({ view }: { view: TurnView }) => [
  view.reasoning,
  view.outcome,
  !view.text,
]);

function ReasoningText({ view }: { view: TurnView }) {
  if (!view.reasoning) return null;
  const isThinking = !view.outcome && !view.text;
  return (
    <details class="reasoning" data-testid="reasoning">
      <summary>
        <Icon name="thought" />
        <span class={isThinking ? "shimmer" : ""}>{isThinking ? "Thinking" : "Reasoning"}</span>
      </summary>
      <div class="thoughts">{view.reasoning}</div>
    </details>
  );
}

/** The answer in pieces, each with the message that was sent into it there; the last piece has none. */
function answerPieces({ text, inputs }: TurnView): { text: string; input?: InputView }[] {
  const starts = [0, ...inputs.map(({ answerOffset }) => answerOffset)];
  return starts.map((start, index) => ({ text: sliceText(text, start, starts[index + 1]), input: inputs[index] }));
}

function AnswerText({ view, text, isLast }: { view: TurnView; text: string; isLast: boolean }) {
  const container = useRef<HTMLDivElement>(null);
  const renderer = useRenderer();
  const answer = useRef<InstanceType<Renderer["AnswerView"]> | null>(null);
  const isEnded = !isLast || !!view.outcome;
  const hasCites = view.citations.length > 0 || view.steps.some((step) => !!step.hits?.length);
  useLayoutEffect(() => {
    if (!renderer) return void (container.current!.textContent = text);
    if (!answer.current) container.current!.replaceChildren();
    answer.current ??= new renderer.AnswerView(container.current!);
    answer.current.show(text, hasCites, isEnded);
  }, [text, hasCites, isEnded, renderer]);
  return <div class={`prose ${isEnded ? "" : "live"}`} data-testid="answer" ref={container} />;
}

function Ending({ entry, conversation }: { entry: Entry; conversation: Conversation }) {
  const { view } = entry;
  if (!view.outcome) return null;
  const again = () => conversation.send(entry.message, entry.agent, entry.parent ?? "", undefined, entry.attachments);
  const tokens = view.usage?.output_tokens;
  const total = view.timings.total_ms;
  const origin = provenance(view);
  return (
    <>
      {view.outcome === "cancelled" && <p class="note">You stopped this answer.</p>}
      {(view.outcome === "failed" || view.outcome === "interrupted") && (
        <div class="failure" role="alert" data-testid="failure">
          <strong>{outcomeText(view.outcome)}.</strong>{" "}
          {view.error?.error ?? view.reason ?? "The turn did not complete."}{" "}
          <button type="button" class="quiet" onClick={again}>
            Try again
          </button>
        </div>
      )}
      <Sources view={view} />
      <footer class="answer-foot">
        <span class="tools">
          {view.text && <CopyButton text={view.text} isCited={view.citations.length > 0} />}
          <IconButton name="again" label="Answer again" testid="retry" onClick={again} />
          <a
            class="icon-button"
            href={turnAddress(view.turnId)}
            title="Show the events of this turn"
            aria-label="Inspect this turn"
            data-testid="inspect"
          >
            <Icon name="wave" />
          </a>
        </span>
        {view.outcome === "completed" && <FeedbackButtons turnId={view.turnId} given={entry.feedback} />}
        <span class="faint">
          {view.text && origin && <span data-testid="provenance">{origin}</span>}
          {[total === undefined ? "" : duration(total), tokens === undefined ? "" : count(tokens, "token")]
            .filter(Boolean)
            .map((fact) => ` · ${fact}`)
            .join("")
            .slice(view.text && origin ? 0 : 3)}
        </span>
      </footer>
    </>
  );
}

function CopyButton({ text, isCited }: { text: string; isCited: boolean }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    if (!(await copyText(isCited ? (await loadRenderer()).renumbered(text) : text))) return;
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

function Sources({ view }: { view: TurnView }) {
  const renderer = useRenderer();
  const first = new Map<number, CitationEvent>();
  for (const citation of view.citations) if (!first.has(citation.index)) first.set(citation.index, citation);
  if (!first.size || !renderer) return null;
  const numbers = renderer.citationOrder(view.text);
  const numberOf = (citation: CitationEvent) => numbers.get(citation.index) ?? Number.MAX_SAFE_INTEGER;
  return (
    <ul class="sources" aria-label="Sources" data-testid="sources">
      {[...first.values()].sort((one, other) => numberOf(one) - numberOf(other)).map((citation) => (
        <li key={citation.index}>
          <button type="button" data-source={citation.index}>
            <span class="hit-index">{numbers.get(citation.index) ?? "·"}</span>
            <span class="source-title">{citation.title ?? citation.document_id}</span>
            {headingIn(citation) && <span class="faint source-heading">{headingIn(citation).split(" › ").at(-1)}</span>}
          </button>
        </li>
      ))}
    </ul>
  );
}
