/** What a log's times come to: phases, steps, silences. Times are milliseconds since the turn was asked for. */

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
  /** Times in which nothing was said, the longest first. */
  gaps: { from: number; to: number }[];
}

/** Shorter silences are not felt. */
const LEAST_GAP = 700;
const MOST_GAPS = 5;

/** `now` is the end of a turn that still runs. */
export function timingOf(events: readonly TimedEvent[], now: number | null): Timing {
  const began = events[0]?.at ?? 0;
  const last = Math.max(events.at(-1)?.at ?? began, now ?? 0) - began;
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
  const begin = (key: string, name: string, kind: Span["kind"], from: number) => {
    const span: Span = { name, kind, from, to: last, isOpen: true, isBad: false };
    open.set(key, span);
    timing.steps.push(span);
  };
  const end = (key: string, to: number, isBad = false) => {
    const span = open.get(key);
    if (span) Object.assign(span, { to, isOpen: false, isBad });
    open.delete(key);
  };
  let before = 0;
  let waitsFor = 0;
  for (const { at, position, event } of events) {
    const time = at - began;
    if (time - before >= LEAST_GAP && !waitsFor) timing.gaps.push({ from: before, to: time });
    before = time;
    if (position > 2) timing.firstEvent ??= time;
    switch (event.type) {
      case "token":
        timing.firstToken ??= time;
        timing.tokens.push(time);
        break;
      case "search":
        if (event.phase === "started") begin(`s${event.step_id}`, event.query, "search", time);
        else end(`s${event.step_id}`, time, event.phase === "failed");
        break;
      case "review":
        begin(
          `r${position}`,
          event.verdict === "approved" ? "evidence is enough" : "evidence is not enough",
          "review",
          time,
        );
        end(`r${position}`, time, event.verdict === "rejected");
        break;
      case "tool_call":
        begin(`t${event.call_id}`, event.tool, "tool", time);
        break;
      case "tool_result":
        end(`t${event.call_id}`, time, !event.success);
        break;
      case "approval_request":
        waitsFor++;
        begin(`a${event.call_id}`, `waits for a person: ${event.tool}`, "waiting", time);
        break;
      case "approval_response":
        waitsFor--;
        end(`a${event.call_id}`, time, !event.approved);
        break;
      case "done":
        for (const key of [...open.keys()]) end(key, time, event.outcome !== "completed");
    }
  }
  timing.gaps = timing.gaps.sort((one, other) => other.to - other.from - (one.to - one.from)).slice(0, MOST_GAPS);
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
  const began = firstEvent ?? total;
  const answered = firstToken ?? total;
  const phases = [span("queued", "queued", 0, began), span("working", "working", began, answered)];
  if (firstToken !== null) phases.push(span("answering", "answering", firstToken, total));
  return phases.filter((phase) => phase.to > phase.from || (phase.kind === "answering" && tokens.length > 0));
}
