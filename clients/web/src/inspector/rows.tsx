/** The log as a list; consecutive pieces of one type are one row. */

import { useEffect, useRef } from "preact/hooks";
import type { TurnEvent } from "../../../js/src/index.ts";
import { count, duration } from "../format.ts";
import type { TimedEvent } from "./log.ts";

interface Row {
  first: TimedEvent;
  last: TimedEvent;
  number: number;
}

const RUNS = new Set(["token", "reasoning", "tool_progress"]);

export function rowsOf(events: readonly TimedEvent[]): Row[] {
  const rows: Row[] = [];
  for (const event of events) {
    const row = rows.at(-1);
    if (row && RUNS.has(event.event.type) && row.first.event.type === event.event.type) {
      row.last = event;
      row.number++;
    } else rows.push({ first: event, last: event, number: 1 });
  }
  return rows;
}

export function Rows({
  rows,
  start,
  position,
  onPick,
}: {
  rows: Row[];
  start: number;
  position: number;
  onPick: (position: number) => void;
}) {
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => {
    const row = list.current?.querySelector<HTMLElement>("[aria-current]");
    const { scrollTop, clientHeight } = list.current!;
    if (row && (row.offsetTop < scrollTop || row.offsetTop + row.offsetHeight > scrollTop + clientHeight)) {
      list.current!.scrollTop = row.offsetTop - clientHeight / 2;
    }
  }, [position]);
  return (
    <ol class="rows" ref={list} aria-label="Events" data-testid="events">
      {rows.map(({ first, last, number }) => (
        <li key={first.position}>
          <button
            type="button"
            aria-current={position >= first.position && position <= last.position ? "true" : undefined}
            class={position < first.position ? "later" : ""}
            onClick={() => onPick(last.position)}
          >
            <span class="row-position">{number > 1 ? `${first.position}–${last.position}` : first.position}</span>
            <span class="row-type" data-type={first.event.type}>
              {first.event.type}
            </span>
            <span class="row-text">
              {number > 1 ? `${count(number, "piece")} in ${duration(last.at - first.at)}` : summary(first.event)}
            </span>
            <span class="row-time">{duration(first.at - start)}</span>
          </button>
        </li>
      ))}
    </ol>
  );
}

function summary(event: TurnEvent): string {
  switch (event.type) {
    case "session":
      return event.agent;
    case "message":
    case "token":
    case "reasoning":
      return event.content;
    case "status":
      return event.text;
    case "handoff":
      return event.agent;
    case "search":
      return `${event.phase}: ${event.query}${event.hits ? ` (${count(event.hits.length, "hit")})` : ""}`;
    case "review":
      return `${event.verdict}, ${event.kept?.length ?? 0} kept, ${event.dropped?.length ?? 0} dropped`;
    case "tool_call":
    case "approval_request":
      return `${event.tool} ${JSON.stringify(event.args)}`;
    case "tool_progress":
      return event.text ?? `${Math.round((event.fraction ?? 0) * 100)} %`;
    case "tool_result":
      return `${event.tool} ${event.success ? "succeeded" : "failed"}`;
    case "approval_response":
      return event.approved ? "allowed" : "denied";
    case "citation":
      return `[${event.index}] ${event.title ?? event.document_id}`;
    case "error":
      return event.error;
    case "done":
      return event.reason ? `${event.outcome}: ${event.reason}` : event.outcome;
    case "restart":
      return `after ${event.from_position}: ${event.reason}`;
    case "custom":
      return event.name;
    case "usage":
      return event.model ?? "";
    case "response":
      return `${count(event.content.length, "character")}, ${count(event.citations.length, "citation")}`;
    default:
      return "";
  }
}
