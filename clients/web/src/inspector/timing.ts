/** The phases, steps and silences of a log. Times are milliseconds since the start of the turn. */

import type { TimedEvent } from "./log.ts";

export interface Span {
  name: string;
  kind: "search" | "review" | "tool" | "waiting" | "working" | "answering" | "queued";
  from: number;
  to: number;
  isOpen: boolean;
  isBad: boolean;
}

export interface Timing {
  total: number;
  firstEvent: number | null;
  firstToken: number | null;
  phases: Span[];
  steps: Span[];
  tokens: number[];
  /** Silences, the longest first. */
  gaps: { from: number; to: number }[];
}

/** Shorter silences are not noticeable. */
const MIN_GAP = 700;
const MAX_GAPS = 5;

/** `now` is the end of a turn that still runs. */
export function timingOf(events: readonly TimedEvent[], now: number | null): Timing {
  const start = events[0]?.at ?? 0;
  const last = Math.max(events.at(-1)?.at ?? start, now ?? 0) - start;
  const timing: Timing = {
    total: last,
    firstEvent: null,
    firstToken: null,
    phases: [],
    steps: [],
    tokens: [],
    gaps: [],
  };
  const open = new Map<string, Span>();
  const startSpan = (key: string, name: string, kind: Span["kind"], from: number) => {
    const span: Span = { name, kind, from, to: last, isOpen: true, isBad: false };
    open.set(key, span);
    timing.steps.push(span);
  };
  const endSpan = (key: string, to: number, isBad = false) => {
    const span = open.get(key);
    if (span) Object.assign(span, { to, isOpen: false, isBad });
    open.delete(key);
  };
  let before = 0;
  let waiting = 0;
  for (const { at, position, event } of events) {
    const time = at - start;
    if (time - before >= MIN_GAP && !waiting) timing.gaps.push({ from: before, to: time });
    before = time;
    if (position > 2) timing.firstEvent ??= time;
    switch (event.type) {
      case "token":
        timing.firstToken ??= time;
        timing.tokens.push(time);
        break;
      case "search":
        if (event.phase === "started") startSpan(`s${event.step_id}`, event.query, "search", time);
        else endSpan(`s${event.step_id}`, time, event.phase === "failed");
        break;
      case "review":
        startSpan(
          `r${position}`,
          event.verdict === "approved" ? "evidence is sufficient" : "evidence is insufficient",
          "review",
          time,
        );
        endSpan(`r${position}`, time, event.verdict === "rejected");
        break;
      case "tool_call":
        startSpan(`t${event.call_id}`, event.tool, "tool", time);
        break;
      case "tool_result":
        endSpan(`t${event.call_id}`, time, !event.success);
        break;
      case "approval_request":
        waiting++;
        startSpan(`a${event.call_id}`, `waiting for approval: ${event.tool}`, "waiting", time);
        break;
      case "approval_response":
        waiting--;
        endSpan(`a${event.call_id}`, time, !event.approved);
        break;
      case "done":
        for (const key of [...open.keys()]) endSpan(key, time, event.outcome !== "completed");
    }
  }
  timing.gaps = timing.gaps.sort((first, other) => other.to - other.from - (first.to - first.from)).slice(0, MAX_GAPS);
  timing.phases = phasesOf(timing);
  return timing;
}

function phasesOf({ firstEvent, firstToken, total, tokens }: Timing): Span[] {
  const span = (name: string, kind: Span["kind"], from: number, to: number): Span => ({
    name,
    kind,
    from,
    to,
    isOpen: false,
    isBad: false,
  });
  const start = firstEvent ?? total;
  const answerStart = firstToken ?? total;
  const phases = [span("queued", "queued", 0, start), span("working", "working", start, answerStart)];
  if (firstToken !== null) phases.push(span("answering", "answering", firstToken, total));
  return phases.filter((phase) => phase.to > phase.from || (phase.kind === "answering" && tokens.length > 0));
}
