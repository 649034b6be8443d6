/** A turn as the inspector shows it: its log, its timing, its record and the prices. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { EMPTY_VIEW, foldTurn, type LoggedEvent, type TurnRecord, type TurnView } from "../../../js/src/index.ts";
import { useObservable } from "../observable.ts";
import { client } from "../server.ts";
import { type TimedEvent, TurnLog } from "./log.ts";
import { fetchPrices, type Prices } from "./prices.ts";
import { type Timing, timingOf } from "./timing.ts";

export interface FoldedTurn {
  log: TurnLog;
  timing: Timing;
  /** The view at the end of the log. */
  final: TurnView;
  record: TurnRecord | null;
}

export function useTurn(turnId: string): FoldedTurn {
  const log = useObservable(useMemo(() => new TurnLog(turnId), [turnId]));
  const { events } = log;
  const record = useRecord(turnId, events.length > 2);
  const now = useNow(!log.isDone && !log.isUnreachable && events.length > 0);
  const startedAt = record?.started_at ? Date.parse(record.started_at) : null;
  const timing = useMemo(
    () => timingOf(events, log.isDone ? null : now, startedAt),
    [events, log.isDone, now, startedAt],
  );
  const final = useMemo(() => viewOf(turnId, events), [events]);
  return { log, timing, final, record };
}

export function viewOf(turnId: string, events: readonly TimedEvent[]): TurnView {
  const logged = events.map(
    ({ position, epoch, event }): LoggedEvent => ({ turnId, position, epoch, id: `${position}.${epoch}`, event }),
  );
  return foldTurn(logged, EMPTY_VIEW);
}

export function usePrices(): Prices {
  const [prices, setPrices] = useState<Prices>({});
  useEffect(() => {
    fetchPrices().then(setPrices, () => {});
  }, []);
  return prices;
}

/** Returns the turn's record, read again when the turn has started, because only then it has `started_at`. */
function useRecord(turnId: string, hasStarted: boolean): TurnRecord | null {
  const [record, setRecord] = useState<TurnRecord | null>(null);
  useEffect(() => {
    client.snapshot(turnId).then(setRecord, () => {});
  }, [turnId, hasStarted]);
  return record;
}

/** Returns the current time, updated while the turn runs so that the timeline grows. */
function useNow(isRunning: boolean): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!isRunning) return;
    const clock = setInterval(() => setNow(Date.now()), 250);
    return () => clearInterval(clock);
  }, [isRunning]);
  return now;
}
