/** The page of all turns: filters, pages, and the choice of two turns to compare. */

import { brand } from "../brand.ts";
import { useEffect, useState } from "preact/hooks";
import type { TurnRecord } from "../../../js/src/index.ts";
import { duration, outcomeText } from "../format.ts";
import { Icon } from "../icons.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { client, errorText, fetchOffer, root } from "../server.ts";
import { filtersOf, inspectAddress, useQuery } from "./address.ts";

const PAGE = 30;
const REFRESH_MS = 3000;
const STATUSES = ["queued", "running", "waiting", "completed", "failed", "cancelled", "interrupted", "joined"];

const TONES = { completed: "good", failed: "bad", cancelled: "", interrupted: "warm", joined: "" } as const;

interface TurnPage {
  turns: TurnRecord[];
  more: boolean;
}

export function TurnList() {
  const [query, change] = useQuery();
  const [page, setPage] = useState<TurnPage | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [agents, setAgents] = useState<string[]>([]);
  const filters = filtersOf(query.toString());
  const chosen = (query.get("compare") ?? "").split(",").filter(Boolean);
  const request = new URLSearchParams(filters);
  for (const name of ["before", "after"]) if (query.get(name)) request.set(name, query.get(name)!);
  request.set("limit", String(PAGE));
  const path = `/v1/turns?${request}`;
  const isRunning = !!page?.turns.some(({ phase }) => phase !== "ended");

  useEffect(() => {
    let isCurrent = true;
    const load = () =>
      client.request<TurnPage>("GET", path).then(
        (result) => isCurrent && (setPage(result), setProblem(null)),
        (error: unknown) => isCurrent && setProblem(errorText(error)),
      );
    void load();
    const timer = setInterval(() => document.visibilityState === "visible" && isRunning && void load(), REFRESH_MS);
    return () => {
      isCurrent = false;
      clearInterval(timer);
    };
  }, [path, isRunning]);
  useEffect(() => {
    document.title = `Turns · ${brand.name}`;
    fetchOffer().then(
      (offer) => setAgents(offer.agents.map(({ name }) => name)),
      () => {},
    );
  }, []);

  const filter = (changes: Record<string, string>) => change({ before: "", after: "", ...changes });
  const choose = (id: string) => {
    const others = chosen.filter((other) => other !== id);
    change({ compare: (others.length < chosen.length ? others : [...chosen.slice(-1), id]).join(",") });
  };
  const turns = page?.turns ?? [];
  // Without a cursor these are the newest turns; after one, `more` tells of newer turns instead of older ones.
  const hasNewer = query.get("after") ? page?.more : query.get("before");
  const hasOlder = query.get("after") ? true : page?.more;
  return (
    <>
      <h1 class="inspected">Turns</h1>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <Search value={filters.get("search") ?? ""} onChange={(search) => filter({ search })} />
        <Choice
          label="State"
          testid="filter-status"
          value={filters.get("status") ?? ""}
          values={STATUSES}
          onChange={(status) => filter({ status })}
        />
        <Choice
          label="Agent"
          testid="filter-agent"
          value={filters.get("agent") ?? ""}
          values={agents}
          onChange={(agent) => filter({ agent })}
        />
        {filters.get("session") && (
          <button type="button" class="quiet" onClick={() => filter({ session: "" })}>
            One conversation <Icon name="close" />
          </button>
        )}
        <span class="spring" />
        {chosen.length > 0 && (
          <Compare chosen={chosen} filters={filters} onClear={() => change({ compare: "" })} />
        )}
      </form>
      {problem && (
        <p role="alert" class="failure">
          {problem}
        </p>
      )}
      {page && !turns.length && (
        <p class="empty" data-testid="no-turns">
          {filters.size ? "No turn matches these filters." : "There are no turns yet. Ask something first."}{" "}
          {filters.size ? (
            <button
              type="button"
              class="link"
              onClick={() => filter({ search: "", status: "", agent: "", session: "" })}
            >
              Show all turns
            </button>
          ) : (
            <a href={`${root}/`}>Start a conversation</a>
          )}
        </p>
      )}
      {!page && !problem && <Skeleton />}
      <ul class="turn-list" data-testid="turns">
        {turns.map((turn) => (
          <TurnRow
            key={turn.turn_id}
            turn={turn}
            href={inspectAddress(turn.turn_id, filters)}
            isChosen={chosen.includes(turn.turn_id)}
            onChoose={() => choose(turn.turn_id)}
          />
        ))}
      </ul>
      {(hasNewer || hasOlder) && turns.length > 0 && (
        <nav class="pages" aria-label="Pages">
          <button
            type="button"
            class="quiet"
            disabled={!hasNewer}
            data-testid="newer"
            onClick={() => change({ after: turns[0]!.turn_id, before: "" })}
          >
            <Icon name="left" /> Newer
          </button>
          <button
            type="button"
            class="quiet"
            disabled={!hasOlder}
            data-testid="older"
            onClick={() => change({ before: turns.at(-1)!.turn_id, after: "" })}
          >
            Older <Icon name="chevron" />
          </button>
        </nav>
      )}
    </>
  );
}

interface TurnRowProps {
  turn: TurnRecord;
  href: string;
  isChosen: boolean;
  onChoose: () => void;
}

function TurnRow({ turn, href, isChosen, onChoose }: TurnRowProps) {
  const ended = turn.ended_at ? Date.parse(turn.ended_at) : Date.now();
  const state = turn.outcome ? outcomeText(turn.outcome) : turn.phase;
  const tone = turn.outcome ? TONES[turn.outcome] : "warm";
  return (
    <li data-turn-id={turn.turn_id}>
      <label class="choose">
        <input
          type="checkbox"
          checked={isChosen}
          onChange={onChoose}
          aria-label={`Compare “${turn.message}”`}
          data-testid="choose"
        />
      </label>
      <a href={href} data-testid="turn-link">
        <span class="turn-message">{turn.message || "(no text)"}</span>
        <span class="turn-facts">
          <span class={`badge ${tone}`}>{state}</span>
          <span>{turn.agent}</span>
          <span>{when(turn.created_at)}</span>
          <span>{duration(ended - Date.parse(turn.created_at))}</span>
          <span>{turn.last_position.toLocaleString("en")} events</span>
        </span>
      </a>
    </li>
  );
}

function Compare({ chosen, filters, onClear }: { chosen: string[]; filters: URLSearchParams; onClear: () => void }) {
  return (
    <div class="comparing" role="status">
      {chosen.length < 2 ? (
        <span class="faint">Choose another turn to compare</span>
      ) : (
        <a class="primary" href={inspectAddress(chosen[0]!, filters, chosen[1])} data-testid="compare">
          Compare two turns
        </a>
      )}
      <button type="button" class="quiet" onClick={onClear}>
        Clear
      </button>
    </div>
  );
}

/** A search field that changes the address when the typing pauses. */
function Search({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => onChange(text), 250);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <input
      type="search"
      placeholder="Search messages"
      aria-label="Search messages"
      data-testid="filter-search"
      value={text}
      onInput={(event) => setText(event.currentTarget.value)}
    />
  );
}

interface ChoiceProps {
  label: string;
  testid: string;
  value: string;
  values: readonly string[];
  onChange: (value: string) => void;
}

function Choice({ label, testid, value, values, onChange }: ChoiceProps) {
  const all = value && !values.includes(value) ? [...values, value] : values;
  return (
    <select
      aria-label={label}
      data-testid={testid}
      value={value}
      onChange={(event) => onChange(event.currentTarget.value)}
    >
      <option value="">{label}: any</option>
      {all.map((name) => (
        <option key={name} value={name}>
          {name}
        </option>
      ))}
    </select>
  );
}

function when(time: string): string {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  const clock = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return isToday ? clock : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${clock}`;
}
