/** The page of one turn: its timeline, its steps, its log, and its answer at any position of the log. */

import { brand } from "../brand.ts";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { TurnRecord } from "../../../js/src/index.ts";
import { duration, outcomeText } from "../format.ts";
import { Icon, IconButton } from "../icons.tsx";
import { SourcePanel } from "../parts/document.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { type Source, sourceOfChip } from "../parts/sources.tsx";
import { Json } from "../parts/steps.tsx";
import { AnswerContent } from "../parts/turn.tsx";
import { client, errorText, root, sessionAddress } from "../server.ts";
import { filtersOf, inspectAddress, listAddress } from "./address.ts";
import { Facts, factsOf, workerFacts } from "./facts.tsx";
import { usePrices, useTurn, viewOf } from "./folded.ts";
import { Missing } from "./missing.tsx";
import { isSame, Picture } from "./picture.tsx";
import { Rows, rowsOf } from "./rows.tsx";
import { StepPanel } from "./step.tsx";
import type { Step } from "./timing.ts";

const LONGEST_PAUSE_MS = 1500;

export function TurnPage({ turnId }: { turnId: string }) {
  const { log, timing, final, record } = useTurn(turnId);
  const prices = usePrices();
  const { events } = log;
  const last = events.at(-1)?.position ?? 0;
  // Null is the end of the log: a running turn is followed until the scrubber is moved.
  const [picked, setPicked] = useState<number | null>(null);
  const [isPlaying, setPlaying] = useState(false);
  const [source, setSource] = useState<Source | null>(null);
  const opener = useRef<HTMLElement | null>(null);
  const [selected, setSelected] = useState<Step | null>(null);
  // A narrow screen shows either the answer or the log.
  const [shown, setShown] = useState<"answer" | "log">("answer");
  const position = Math.min(picked ?? last, last);
  const index = Math.max(
    0,
    events.findIndex((event) => event.position >= position),
  );
  const rows = useMemo(() => rowsOf(events), [events]);
  const view = useMemo(() => viewOf(turnId, events.slice(0, index + 1)), [events, index]);
  const start = events[0]?.at ?? 0;
  const at = events[index];
  const step = selected && timing.steps.find((other) => isSame(selected, other));

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
  const select = (next: Step) => {
    if (selected && isSame(selected, next)) return setSelected(null);
    setSelected(next);
    pick(next.last);
  };
  const openSource = (event: MouseEvent) => {
    const chip = (event.target as Element).closest<HTMLElement>("[data-cite], [data-source]");
    const found = chip && sourceOfChip(chip, view);
    if (!found) return;
    opener.current = chip;
    setSource(found);
  };
  if (log.problem && !events.length) return <Missing turnId={turnId} problem={log.problem} isGone={log.isMissing} />;
  if (!at) return <Skeleton />;
  return (
    <>
      <TurnLinks turnId={turnId} record={record} />
      <h1 class="inspected" data-testid="asked">
        {final.message}
      </h1>
      <Facts facts={[...factsOf(final, timing, prices, log.isUnreachable), ...workerFacts(events)]} />
      {final.forkedFrom && (
        <p class="note" data-testid="forked">
          Branched from <a href={inspectAddress(final.forkedFrom, filtersOf(location.search))}>another turn</a> at position{" "}
          {final.forkedAt}.
        </p>
      )}
      {log.problem && (
        <p role="alert" class="failure">
          {log.problem}
        </p>
      )}
      <Picture timing={timing} at={at.at - start} onPick={pickTime} selected={step} onSelect={select} />
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
      <BranchForm turnId={turnId} position={position} />
      {step && <StepPanel step={step} events={events} prices={prices} onClose={() => setSelected(null)} />}
      <div class="switch" role="group" aria-label="Show">
        {(["answer", "log"] as const).map((name) => (
          <button
            key={name}
            type="button"
            aria-pressed={shown === name}
            data-testid={`show-${name}`}
            onClick={() => setShown(name)}
          >
            {name === "answer" ? "Answer" : "Log"}
          </button>
        ))}
      </div>
      <div class="inspect-columns" data-shown={shown}>
        <section class="answer-column" aria-labelledby="seen-title">
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
        <section class="log-column" aria-labelledby="log-title">
          <h2 id="log-title">Log</h2>
          <Rows rows={rows} start={start} position={position} onPick={pick} />
          <Json label={`Event ${position}`} value={at.event} />
        </section>
      </div>
      {source && (
        <aside class="panel floating" aria-label="Source">
          <SourcePanel source={source} onClose={() => (setSource(null), opener.current?.focus())} />
        </aside>
      )}
    </>
  );
}

/** Starts a turn that shares this one up to the shown position, and shows it. */
function BranchForm({ turnId, position }: { turnId: string; position: number }) {
  const [message, setMessage] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const branch = async (event: Event) => {
    event.preventDefault();
    try {
      const fork = await client.turn(turnId).fork({ position, ...(message.trim() && { message: message.trim() }) });
      location.assign(inspectAddress(fork.turn_id, filtersOf(location.search)));
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  return (
    <form class="branch" onSubmit={branch}>
      <input
        type="text"
        aria-label="Another message, if the branch should go on with one"
        placeholder="Another message (optional)"
        data-testid="branch-message"
        value={message}
        onInput={(event) => setMessage(event.currentTarget.value)}
      />
      <button type="submit" class="secondary" data-testid="branch">
        Branch from here
      </button>
      {problem && (
        <span role="alert" class="problem">
          {problem}
        </span>
      )}
    </form>
  );
}

/** The way to the list, to the turns before and after this one in it, and to other views of this turn. */
function TurnLinks({ turnId, record }: { turnId: string; record: TurnRecord | null }) {
  const filters = filtersOf(location.search);
  const [neighbours, setNeighbours] = useState<{ before?: string; after?: string }>({});
  useEffect(() => {
    const read = async (direction: "before" | "after") => {
      const query = new URLSearchParams([...filters, [direction, turnId], ["limit", "1"]]);
      const page = await client.request<{ turns: TurnRecord[] }>("GET", `/v1/turns?${query}`);
      return page.turns[0]?.turn_id;
    };
    Promise.all([read("before"), read("after")]).then(
      ([before, after]) => setNeighbours({ ...(before && { before }), ...(after && { after }) }),
      () => {},
    );
  }, [turnId]);
  const compared = new URLSearchParams(filters);
  compared.set("compare", turnId);
  return (
    <nav class="turn-links" aria-label="Turns">
      <a class="quiet" href={listAddress(filters)} data-testid="all-turns">
        <Icon name="menu" /> {filters.size ? "Filtered turns" : "All turns"}
      </a>
      <Neighbour id={neighbours.before} label="Previous" testid="previous-turn" filters={filters} />
      <Neighbour id={neighbours.after} label="Next" testid="next-turn" filters={filters} />
      <span class="spring" />
      {record && (
        <a class="quiet" href={sessionAddress(record.session_id)}>
          Conversation
        </a>
      )}
      <a class="quiet" href={listAddress(compared)}>
        Compare
      </a>
      <a class="quiet" href={`${root}/v1/turns/${encodeURIComponent(turnId)}/log.jsonl`} download data-testid="download">
        <Icon name="down" /> JSON lines
      </a>
    </nav>
  );
}

function Neighbour(props: { id: string | undefined; label: string; testid: string; filters: URLSearchParams }) {
  const { id, label, testid, filters } = props;
  const content = label === "Next" ? [label, <Icon name="chevron" />] : [<Icon name="left" />, label];
  // A link without an address cannot be followed, and keeps the place of the other one.
  return (
    <a
      class="quiet"
      data-testid={testid}
      {...(id ? { href: inspectAddress(id, filters) } : { role: "link", "aria-disabled": "true" })}
    >
      {content}
    </a>
  );
}
