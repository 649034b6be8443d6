/** The turn inspector: the timeline of a turn, and its answer at any position of the log. */

import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { EMPTY_VIEW, foldTurn, type LoggedEvent } from "../../js/src/index.ts";
import { brand } from "./brand.ts";
import { Icon, IconButton, Logo } from "./icons.tsx";
import { type TimedEvent, TurnLog } from "./inspector/log.ts";
import { Picture } from "./inspector/picture.tsx";
import { Rows, rowsOf } from "./inspector/rows.tsx";
import { type Timing, timingOf } from "./inspector/timing.ts";
import { useObservable } from "./observable.ts";
import { SourcePanel } from "./parts/document.tsx";
import { Gate } from "./parts/gate.tsx";
import { type Source, sourceOfChip } from "./parts/sources.tsx";
import { Json } from "./parts/steps.tsx";
import { ThemeButton } from "./parts/theme.tsx";
import { AnswerContent } from "./parts/turn.tsx";
import { client, root, sessionAddress } from "./server.ts";
import { count, duration, outcomeText, statusOf } from "./format.ts";

const turnId = decodeURIComponent(location.pathname.split("/").filter(Boolean).at(-1) ?? "");
const LONGEST_PAUSE_MS = 1500;

function Inspector() {
  const log = useObservable(useMemo(() => new TurnLog(turnId), []));
  const { events } = log;
  const last = events.at(-1)?.position ?? 0;
  // Null is the end of the log: a running turn is followed until the scrubber is moved.
  const [picked, setPicked] = useState<number | null>(null);
  const [isPlaying, setPlaying] = useState(false);
  const [source, setSource] = useState<Source | null>(null);
  const position = Math.min(picked ?? last, last);
  const index = Math.max(
    0,
    events.findIndex((event) => event.position >= position),
  );
  const now = useNow(!log.isDone && !log.isUnreachable && events.length > 0);
  const timing = useMemo(() => timingOf(events, log.isDone ? null : now), [events, log.isDone, now]);
  const rows = useMemo(() => rowsOf(events), [events]);
  const view = useMemo(() => foldTurn(events.slice(0, index + 1).map(logged), EMPTY_VIEW), [events, index]);
  const final = useMemo(() => foldTurn(events.map(logged), EMPTY_VIEW), [events]);
  const start = events[0]?.at ?? 0;
  const at = events[index];

  useEffect(() => {
    if (!isPlaying) return;
    const next = events[index + 1];
    if (!next) return setPlaying(false);
    const timer = setTimeout(() => setPicked(next.position), Math.min(LONGEST_PAUSE_MS, next.at - at!.at));
    return () => clearTimeout(timer);
  }, [isPlaying, index, events]);
  useEffect(() => {
    document.title = `${final.message || "Turn"} · ${brand.name}`;
  }, [final.message]);

  const play = () => {
    if (!isPlaying && index >= events.length - 1) setPicked(events[0]!.position);
    setPlaying(!isPlaying);
  };
  const pick = (target: number) => {
    setPlaying(false);
    setPicked(target >= last ? null : target);
  };
  const pickTime = (time: number) => {
    const found = events.findLast((event) => event.at - start <= time) ?? events[0];
    if (found) pick(found.position);
  };
  const openSource = (event: MouseEvent) => {
    const chip = (event.target as Element).closest<HTMLElement>("[data-cite], [data-source]");
    const found = chip && sourceOfChip(chip, view);
    if (found) setSource(found);
  };
  if (log.problem && !events.length)
    return (
      <p role="alert" class="failure">
        {log.problem}
      </p>
    );
  if (!at) return <div class="skeleton" aria-label="Loading" />;
  return (
    <>
      <h1 class="inspected" data-testid="asked">
        {final.message}
      </h1>
      <Facts view={final} timing={timing} isUnreachable={log.isUnreachable} />
      {log.problem && (
        <p role="alert" class="failure">
          {log.problem}
        </p>
      )}
      <Picture timing={timing} at={at.at - start} onPick={pickTime} />
      <div class="scrubber">
        <IconButton
          name={isPlaying ? "stop" : "play"}
          label={isPlaying ? "Pause" : "Play"}
          testid="play"
          onClick={play}
        />
        <input
          type="range"
          data-testid="scrubber"
          aria-label="Position in the log"
          aria-valuetext={`Position ${position} of ${last}, ${at.event.type}, after ${duration(at.at - start)}`}
          min={1}
          max={last}
          value={position}
          onInput={(event) => pick(Number(event.currentTarget.value))}
        />
        <span class="scrub-text" data-testid="position">
          {position} / {last}
        </span>
      </div>
      <div class="inspect-columns">
        <section aria-labelledby="seen-title">
          <h2 id="seen-title">Answer at this position</h2>
          <div class="seen" data-testid="seen" onClick={openSource}>
            <div class="bubble">{view.message || "…"}</div>
            {position > 2 && (
              <article class="answer" aria-label="Answer">
                <AnswerContent view={view} />
                {view.outcome && view.outcome !== "completed" && (
                  <p class="note">
                    {outcomeText(view.outcome)}. {view.error?.error ?? view.reason ?? ""}
                  </p>
                )}
              </article>
            )}
          </div>
        </section>
        <section aria-labelledby="log-title">
          <h2 id="log-title">Log</h2>
          <Rows rows={rows} start={start} position={position} onPick={pick} />
          <Json label={`Event ${position}`} value={at.event} />
        </section>
      </div>
      {source && (
        <aside class="panel floating" aria-label="Source">
          <SourcePanel source={source} onClose={() => setSource(null)} />
        </aside>
      )}
    </>
  );
}

function Facts({ view, timing, isUnreachable }: { view: ReturnType<typeof foldTurn>; timing: Timing; isUnreachable: boolean }) {
  const seconds = timing.firstToken === null ? 0 : (timing.tokens.at(-1)! - timing.firstToken) / 1000;
  const facts: [string, string][] = [
    ["Outcome", view.outcome ? outcomeText(view.outcome) : isUnreachable ? "Server unreachable…" : statusOf(view)],
    ["Duration", duration(timing.total)],
    ["First event", timing.firstEvent === null ? "–" : duration(timing.firstEvent)],
    ["First token", timing.firstToken === null ? "–" : duration(timing.firstToken)],
    [
      "Tokens",
      seconds > 0.05
        ? `${timing.tokens.length.toLocaleString("en")} at ${Math.round(timing.tokens.length / seconds)}/s`
        : String(timing.tokens.length),
    ],
    ["Longest silence", timing.gaps[0] ? duration(timing.gaps[0].to - timing.gaps[0].from) : "none"],
    ["Agent", view.agent],
  ];
  const usage = view.usage;
  if (usage?.input_tokens !== undefined || usage?.output_tokens !== undefined) {
    facts.push([
      "Model tokens",
      `${count(usage.input_tokens ?? 0, "in", "in")}, ${count(usage.output_tokens ?? 0, "out", "out")}`,
    ]);
  }
  return (
    <dl class="facts" data-testid="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Page() {
  const [sessionId, setSessionId] = useState("");
  useEffect(() => {
    client.snapshot(turnId).then(
      (snapshot) => setSessionId(snapshot.session_id),
      () => {},
    );
  }, []);
  return (
    <div class="inspector">
      <header class="inspector-head">
        <a class="brand" href={sessionId ? sessionAddress(sessionId) : `${root}/`}>
          <Logo /> {brand.name}
        </a>
        <span class="faint">Turn inspector</span>
        <span class="spring" />
        {sessionId && (
          <a class="quiet back" href={sessionAddress(sessionId)}>
            <Icon name="left" /> Open the conversation
          </a>
        )}
        <a
          class="quiet"
          href={`${root}/v1/turns/${encodeURIComponent(turnId)}/log.jsonl`}
          download
          data-testid="download"
        >
          <Icon name="down" /> JSON lines
        </a>
        <ThemeButton />
      </header>
      <main>
        <Inspector />
      </main>
    </div>
  );
}

const logged = ({ position, epoch, event }: TimedEvent): LoggedEvent => ({
  turnId,
  position,
  epoch,
  id: `${position}.${epoch}`,
  event,
});

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

render(<Gate>{() => <Page />}</Gate>, document.getElementById("root")!);
