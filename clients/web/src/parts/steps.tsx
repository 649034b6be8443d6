/** The steps of a turn: searches, reviews and tool calls, folded when the turn has ended. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Hit, StepView, TurnView } from "../../../js/src/index.ts";
import { Icon, type IconName } from "../icons.tsx";
import { memo } from "../memo.tsx";
import { count, duration, headingIn, statusOf, stepsSummary, stepTitle } from "../format.ts";

const MAX_SHOWN = 4_000;
const ICONS: { [kind in StepView["kind"]]: IconName } = {
  search: "search",
  review: "review",
  tool: "tool",
  handoff: "handoff",
};

/** Renders only when one of these facts changes, so that tokens cost nothing. */
export const Steps = /* @__PURE__ */ memo(StepList, ({ view }: { view: TurnView }) => [
  view.steps,
  view.status,
  view.outcome,
  view.approvals,
  !view.text,
  !view.reasoning,
]);

function StepList({ view }: { view: TurnView }) {
  const isOver = view.outcome !== undefined;
  const [choice, setChoice] = useState<boolean | null>(null);
  const isOpen = choice ?? !isOver;
  if (!view.steps.length) return isOver || view.text ? null : <Waiting text={statusOf(view)} />;
  const hits = new Map(view.steps.flatMap((step) => step.hits ?? []).map((hit) => [hit.index, hit]));
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
      </button>
      {isOpen && (
        <ol>
          {view.steps.map((step) => (
            <Step key={`${step.kind}-${step.id}-${step.position}`} step={step} hits={hits} />
          ))}
          {!isOver && view.status && !view.text && view.steps.every((step) => step.state !== "running") && (
            <li class="step running note">
              <span class="dot" />
              <span class="shimmer">{view.status}</span>
            </li>
          )}
        </ol>
      )}
    </div>
  );
}

function Waiting({ text }: { text: string }) {
  return (
    <div class="pending" data-testid="waiting">
      <span class="dots" aria-hidden="true">
        <i />
        <i />
        <i />
      </span>
      <span class="shimmer">{text}</span>
    </div>
  );
}

function Step({ step, hits }: { step: StepView; hits: Map<number, Hit> }) {
  const { line, more } = describe(step, hits);
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
          <div class="step-more">{more}</div>
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

function describe(step: StepView, hits: Map<number, Hit>): { line: ComponentChildren; more: ComponentChildren } {
  switch (step.kind) {
    case "search":
      return describeSearch(step);
    case "review":
      return describeReview(step, hits);
    case "handoff":
      return { line: null, more: null };
    case "tool":
      return describeCall(step);
  }
}

function describeSearch(step: StepView) {
  const hits = step.hits;
  return {
    line: (
      <>
        <q>{step.query}</q>
        {step.page !== undefined && step.page > 1 && <span class="faint"> page {step.page}</span>}
        {hits && <span class="badge">{count(hits.length, "hit")}</span>}
      </>
    ),
    more: hits?.length ? <Hits hits={hits} /> : null,
  };
}

function describeReview(step: StepView, hits: Map<number, Hit>) {
  const review = step.review;
  if (!review) return { line: null, more: null };
  const kept = review.kept ?? [];
  const dropped = review.dropped ?? [];
  const hitsOf = (indexes: number[]) => indexes.map((index) => hits.get(index) ?? { index, document_id: "" });
  return {
    line: (
      <>
        <span class="badge good">{kept.length} kept</span>
        {dropped.length > 0 && <span class="badge">{dropped.length} dropped</span>}
      </>
    ),
    more: (
      <>
        {review.feedback && <p>{sentence(review.feedback)}</p>}
        {!!review.missing?.length && <p class="faint">Missing: {review.missing.join(", ")}</p>}
        {!!review.next_queries?.length && <p class="faint">Next: {review.next_queries.join(" · ")}</p>}
        {kept.length > 0 && <Hits hits={hitsOf(kept)} label="Kept" />}
        {dropped.length > 0 && <Hits hits={hitsOf(dropped)} label="Dropped" />}
      </>
    ),
  };
}

function describeCall(step: StepView) {
  const args = step.args && Object.keys(step.args).length ? step.args : null;
  const hint =
    step.state === "running" && step.progress ? step.progress : args ? Object.values(args).map(short).join(", ") : "";
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
        {args && <Json label="Arguments" value={args} />}
        {decision?.reason && <p class="faint">{decision.reason}</p>}
        {step.progress && step.state !== "running" && <p class="faint">{step.progress}</p>}
        {step.result !== undefined && <Json label="Result" value={step.result} />}
      </>
    ),
  };
}

function Hits({ hits, label }: { hits: Hit[]; label?: string }) {
  return (
    <>
      {label && <div class="label">{label}</div>}
      <ul class={`hits ${label === "Dropped" ? "dropped" : ""}`}>
        {hits.map((hit) => (
          <li key={hit.index}>
            <span class="hit-index">{hit.index}</span>
            <span>
              <button type="button" class="hit-title" data-source={hit.index}>
                {hit.title ?? (hit.document_id || `Hit ${hit.index}`)}
              </button>
              {headingIn(hit) && <span class="faint"> › {headingIn(hit)}</span>}
              {hit.text && <span class="excerpt">{hit.text}</span>}
            </span>
          </li>
        ))}
      </ul>
    </>
  );
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

function short(value: unknown): string {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

const sentence = (text: string): string =>
  text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");
