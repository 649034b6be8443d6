/** The steps of a turn: searches, reviews and tool calls, folded when the turn has ended. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Arguments, Hit, StepView, TurnView } from "../../../js/src/index.ts";
import { Icon, type IconName } from "../icons.tsx";
import { memo } from "../memo.tsx";
import { argumentLines, count, duration, headingIn, statusOf, stepsSummary, stepTitle } from "../format.ts";
import { type Renderer, useRenderer } from "../text/load.ts";

const MAX_SHOWN = 4_000;
const ICONS: { [kind in StepView["kind"]]: IconName } = {
  search: "search",
  review: "review",
  tool: "tool",
  handoff: "handoff",
};

interface StepsProps {
  view: TurnView;
  /** When the turn began to run, for the clock. */
  startedAt?: number | null;
  /** Starts a turn that shares this one up to a position. Absent where that is not offered. */
  onBranch?: Branch | undefined;
}

export type Branch = (position: number) => void;

/** Renders only when one of these facts changes, so that tokens cost nothing. */
export const Steps = /* @__PURE__ */ memo(StepList, ({ view, startedAt }: StepsProps) => [
  startedAt,
  view.steps,
  view.status,
  view.outcome,
  view.phase,
  view.approvals,
  !view.text,
  !view.reasoning,
]);

function StepList({ view, startedAt = null, onBranch }: StepsProps) {
  const isOver = view.outcome !== undefined;
  const [choice, setChoice] = useState<boolean | null>(null);
  const isOpen = choice ?? !isOver;
  const clock = !isOver && startedAt !== null && view.phase !== "waiting" && <Clock since={startedAt} />;
  if (!view.steps.length) return isOver || view.text ? null : <Waiting text={statusOf(view)}>{clock}</Waiting>;
  const total = view.steps.reduce((sum, step) => sum + (step.ms ?? 0), 0);
  return (
    <div class={`steps ${isOpen ? "open" : ""}`} data-testid="steps" data-open={isOpen}>
      <button type="button" class="steps-head" aria-expanded={isOpen} onClick={() => setChoice(!isOpen)}>
        <Icon name="chevron" />
        {isOver ? (
          <span>
            {stepsSummary(view.steps)}
            {total > 0 && <span class="faint"> · {duration(total)}</span>}
          </span>
        ) : (
          <span class={view.text ? "" : "shimmer"}>{statusOf(view)}</span>
        )}
        {clock}
      </button>
      {isOpen && <OpenSteps view={view} isOver={isOver} onBranch={isOver ? onBranch : undefined} />}
    </div>
  );
}

function OpenSteps(props: { view: TurnView; isOver: boolean; onBranch: Branch | undefined }) {
  const { view, isOver, onBranch } = props;
  const evidence = evidenceOf(view, useRenderer());
  return (
    <ol>
      {view.steps.map((step) => (
        <Step key={`${step.kind}-${step.id}-${step.position}`} step={step} evidence={evidence} onBranch={onBranch} />
      ))}
      {!isOver && view.status && !view.text && view.steps.every((step) => step.state !== "running") && (
        <li class="step running note">
          <span class="dot" />
          <span class="shimmer">{view.status}</span>
        </li>
      )}
    </ol>
  );
}

/** The evidence of a turn. A passage that several searches found belongs to the first of them. */
interface Evidence {
  foundBy: Map<number, StepView>;
  dropped: Set<number>;
  /** The shown numbers of the passages that the answer cites. */
  numbers: Map<number, number>;
}

function evidenceOf(view: TurnView, renderer: Renderer | null): Evidence {
  const foundBy = new Map<number, StepView>();
  const dropped = new Set<number>();
  for (const step of view.steps) {
    for (const hit of step.hits ?? []) if (!foundBy.has(hit.index)) foundBy.set(hit.index, step);
    for (const index of step.review?.kept ?? []) dropped.delete(index);
    for (const index of step.review?.dropped ?? []) dropped.add(index);
  }
  const numbers = view.outcome && foundBy.size ? renderer?.citationOrder(view.text) : undefined;
  return { foundBy, dropped, numbers: numbers ?? new Map() };
}

/** The seconds that a turn has run. */
function Clock({ since }: { since: number }) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return (
    <span class="clock" data-testid="clock">
      {duration(Math.max(1, Math.floor((now - since) / 1000)) * 1000).replace(".0", "")}
    </span>
  );
}

function Waiting({ text, children }: { text: string; children: ComponentChildren }) {
  return (
    <div class="pending" data-testid="waiting">
      <span class="dots" aria-hidden="true">
        <i />
        <i />
        <i />
      </span>
      <span class="shimmer">{text}</span>
      {children}
    </div>
  );
}

function Step({ step, evidence, onBranch }: { step: StepView; evidence: Evidence; onBranch: Branch | undefined }) {
  const { line, more } = describe(step, evidence);
  const head = (
    <>
      <span class="dot">
        <Icon name={ICONS[step.kind]} />
      </span>
      <span class={`step-title ${step.kind === "tool" ? "mono" : ""} ${step.state === "running" ? "shimmer" : ""}`}>
        {step.agentPath.length > 0 && <span class="faint">{step.agentPath.join(" › ")} › </span>}
        {stepTitle(step)}
      </span>
      <span class="step-line">{line}</span>
      {step.ms !== undefined && <span class="step-time">{duration(step.ms)}</span>}
    </>
  );
  return (
    <li
      class={`step ${step.kind} ${step.state} ${step.name === "rejected" ? "rejected" : ""}`}
      data-testid={`step-${step.kind}`}
      data-state={step.state}
    >
      {more ? (
        <details>
          <summary>{head}</summary>
          <div class="step-more">
            {more}
            {onBranch && step.endPosition !== undefined && (
              <button type="button" class="quiet" data-testid="branch" onClick={() => onBranch(step.endPosition!)}>
                Branch from here
              </button>
            )}
          </div>
        </details>
      ) : (
        <div class="step-bare">{head}</div>
      )}
      {step.kind === "tool" && step.state === "running" && step.fraction !== undefined && (
        <progress max={1} value={step.fraction} aria-label={`${step.name}: ${Math.round(step.fraction * 100)} %`} />
      )}
    </li>
  );
}

function describe(step: StepView, evidence: Evidence): { line: ComponentChildren; more: ComponentChildren } {
  switch (step.kind) {
    case "search":
      return describeSearch(step, evidence);
    case "review":
      return describeReview(step);
    case "handoff":
      return { line: null, more: null };
    case "tool":
      return describeCall(step);
  }
}

function describeSearch(step: StepView, evidence: Evidence) {
  const hits = step.hits;
  const fresh = hits?.filter((hit) => evidence.foundBy.get(hit.index) === step) ?? [];
  const known = (hits?.length ?? 0) - fresh.length;
  return {
    line: (
      <>
        <q>{step.query}</q>
        {step.page !== undefined && step.page > 1 && <span class="faint"> page {step.page}</span>}
        {hits && <span class="badge">{count(hits.length, "hit")}</span>}
      </>
    ),
    more: hits?.length ? (
      <>
        {fresh.length > 0 && <Hits hits={fresh} evidence={evidence} />}
        {known > 0 && <p class="faint">{count(known, "passage")} found before.</p>}
      </>
    ) : null,
  };
}

function describeReview(step: StepView) {
  const review = step.review;
  if (!review) return { line: null, more: null };
  const dropped = review.dropped?.length ?? 0;
  const hasMore = review.feedback || review.missing?.length || review.next_queries?.length;
  return {
    line: (
      <>
        <span class="badge good">{review.kept?.length ?? 0} kept</span>
        {dropped > 0 && <span class="badge">{dropped} dropped</span>}
      </>
    ),
    more: hasMore ? (
      <>
        {review.feedback && <p>{sentence(review.feedback)}</p>}
        {!!review.missing?.length && <p class="faint">Missing: {review.missing.join(", ")}</p>}
        {!!review.next_queries?.length && <p class="faint">Next: {review.next_queries.join(" · ")}</p>}
      </>
    ) : null,
  };
}

function describeCall(step: StepView) {
  const args = step.args && Object.keys(step.args).length ? step.args : null;
  const hint =
    step.state === "running" && step.progress ? step.progress : args ? argumentLines(args).map(short).join(", ") : "";
  const decision = step.decision;
  return {
    line: (
      <>
        <span class="hint">{hint}</span>
        {step.state === "waiting" && <span class="badge warm">waiting for you</span>}
        {step.state === "failed" && <span class="badge bad">failed</span>}
        {decision && (
          <span class={`badge ${decision.approved ? "good" : "bad"}`}>{decision.approved ? "allowed" : "denied"}</span>
        )}
      </>
    ),
    more: (
      <>
        {args && <ArgumentList args={args} />}
        {decision?.reason && <p class="faint">{decision.reason}</p>}
        {step.progress && step.state !== "running" && <p class="faint">{step.progress}</p>}
        {step.result !== undefined && <Json label="Result" value={step.result} />}
      </>
    ),
  };
}

function Hits({ hits, evidence }: { hits: Hit[]; evidence: Evidence }) {
  return (
    <ul class="hits">
      {hits.map((hit) => {
        const number = evidence.numbers.get(hit.index);
        const isDropped = evidence.dropped.has(hit.index);
        return (
          <li key={hit.index} class={isDropped ? "dropped" : ""}>
            <span class={number ? "hit-index" : "hit-index uncited"}>{number ?? "·"}</span>
            <span>
              <button type="button" class="hit-title" data-source={hit.index}>
                {hit.title ?? (hit.document_id || "Passage")}
              </button>
              {headingIn(hit) && <span class="faint"> › {headingIn(hit)}</span>}
              {isDropped && <span class="badge">dropped</span>}
              {hit.text && <span class="excerpt">{hit.text}</span>}
            </span>
          </li>
        );
      })}
    </ul>
  );
}

/** The arguments of a call, one per line. */
export function ArgumentList({ args }: { args: Arguments }) {
  return <Json label="Arguments" value={argumentLines(args).join("\n")} />;
}

export function Json({ label, value }: { label: string; value: unknown }) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return (
    <>
      <div class="label">{label}</div>
      <pre class="json" tabIndex={0} role="group" aria-label={label}>
        {text.length > MAX_SHOWN
          ? `${text.slice(0, MAX_SHOWN)}\n… ${count(text.length - MAX_SHOWN, "character")} more`
          : text}
      </pre>
    </>
  );
}

const short = (text: string): string => (text.length > 60 ? `${text.slice(0, 59)}…` : text);

const sentence = (text: string): string =>
  text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");
