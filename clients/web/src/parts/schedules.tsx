/** A panel to see, add, pause and delete schedules: messages that the server sends at set times. */

import { useEffect, useState } from "preact/hooks";
import { focusFirst } from "../focus.ts";
import { Icon, IconButton } from "../icons.tsx";
import {
  NO_TIMES,
  readTimes,
  repetition,
  SCHEDULE_KINDS,
  type ScheduleKind,
  type ScheduleTimes,
  WEEKDAYS,
  when,
} from "../schedule_times.ts";
import { client, errorText, type Offer } from "../server.ts";
import { Menu } from "./menu.tsx";

interface Schedule {
  id: string;
  name: string;
  message: string;
  cron: string | null;
  every: number | null;
  at: string | null;
  timezone: string;
  session_id: string | null;
  paused: boolean;
  next_at: string | null;
  last_run: { due: string; turn_id: string | null; error: string | null } | null;
}

interface SchedulesProps {
  offer: Offer | null;
  /** The conversation that is open, to which a schedule may belong. */
  sessionId: string | null;
  mayWrite: boolean;
  onPick: (sessionId: string) => void;
  onClose: () => void;
}

/** The shortest and the longest time between two looks at the list, in ms. */
const SOON = 2_000;
const LATE = 60_000;

export function SchedulesPanel(props: SchedulesProps) {
  const { mayWrite, onClose } = props;
  const [schedules, setSchedules] = useState<Schedule[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [isAdding, setAdding] = useState(false);
  const load = async () => {
    try {
      const found = await client.request<{ schedules: Schedule[] }>("GET", "/v1/schedules");
      setSchedules(found.schedules);
      setProblem(null);
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  useEffect(() => void load(), []);
  useEffect(() => {
    const next = Math.min(...(schedules ?? []).map(({ next_at }) => (next_at ? Date.parse(next_at) : Infinity)));
    const timer = setTimeout(load, Math.max(SOON, Math.min(LATE, next - Date.now() + SOON)));
    return () => clearTimeout(timer);
  }, [schedules, problem]);
  const act = async (method: string, id: string, body?: object) => {
    try {
      await client.request(method, `/v1/schedules/${encodeURIComponent(id)}`, body);
      await load();
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  const openRun = async (turnId: string) => {
    try {
      const turn = await client.request<{ session_id: string }>("GET", `/v1/turns/${encodeURIComponent(turnId)}`);
      props.onPick(turn.session_id);
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  return (
    <section class="panel-inner" aria-labelledby="schedules-title" data-testid="schedules">
      <header class="panel-head">
        <h2 id="schedules-title" tabIndex={-1} ref={focusFirst}>
          Schedules
        </h2>
        <IconButton name="close" label="Close the schedules" onClick={onClose} />
      </header>
      <div class="panel-body">
        {problem && (
          <p role="alert" class="problem">
            {problem}
          </p>
        )}
        {mayWrite && !isAdding && (
          <button type="button" class="secondary add" data-testid="schedule-new" onClick={() => setAdding(true)}>
            <Icon name="plus" /> New schedule
          </button>
        )}
        {isAdding && <NewSchedule {...props} onDone={() => (setAdding(false), void load())} />}
        {schedules && !schedules.length && !isAdding && (
          <p class="faint">
            A schedule sends a message at set times, also when nobody is here. The answers are in the list of
            conversations.
          </p>
        )}
        <ul class="document-list">
          {schedules?.map((schedule) => (
            <Row
              key={schedule.id}
              schedule={schedule}
              mayWrite={mayWrite}
              onPause={() => void act("PATCH", schedule.id, { paused: !schedule.paused })}
              onDelete={() => void act("DELETE", schedule.id)}
              onRun={(turnId) => void openRun(turnId)}
            />
          ))}
        </ul>
      </div>
    </section>
  );
}

interface RowProps {
  schedule: Schedule;
  mayWrite: boolean;
  onPause: () => void;
  onDelete: () => void;
  onRun: (turnId: string) => void;
}

function Row({ schedule, mayWrite, onPause, onDelete, onRun }: RowProps) {
  const { message, name, paused, next_at: next, last_run: last } = schedule;
  const title = name || message;
  return (
    <li class={`schedule ${paused ? "paused" : ""}`} data-testid="schedule" data-paused={paused}>
      <div class="schedule-text">
        <strong>{title}</strong>
        {name && <span class="small">{message}</span>}
        <span class="faint small">
          {repetition(schedule)}
          {schedule.session_id ? " · in one conversation" : ""}
        </span>
        <span class="faint small" data-testid="schedule-next">
          {paused ? "Paused" : next ? `Next: ${when(next)}` : "Over"}
          {last && " · "}
          {last?.turn_id ? (
            <button type="button" class="link" data-testid="schedule-last" onClick={() => onRun(last.turn_id!)}>
              Last: {when(last.due)}
            </button>
          ) : (
            last && <span class={last.error ? "problem" : ""}>Last: {last.error ?? when(last.due)}</span>
          )}
        </span>
      </div>
      {mayWrite && (
        <Menu
          label={`Actions for ${title}`}
          testid="schedule-menu"
          items={[
            paused
              ? { icon: "play", text: "Resume", testid: "schedule-resume", onPick: onPause }
              : { icon: "pause", text: "Pause", testid: "schedule-pause", onPick: onPause },
            { icon: "trash", text: "Delete", testid: "schedule-delete", isDangerous: true, onPick: onDelete },
          ]}
        />
      )}
    </li>
  );
}

function NewSchedule({ offer, sessionId, onDone }: SchedulesProps & { onDone: () => void }) {
  const [message, setMessage] = useState("");
  const [times, setTimes] = useState<ScheduleTimes>(NO_TIMES);
  const [agent, setAgent] = useState("");
  const [isHere, setHere] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const [isSaving, setSaving] = useState(false);
  const set = (part: Partial<ScheduleTimes>) => setTimes((now) => ({ ...now, ...part }));
  const save = async () => {
    setSaving(true);
    try {
      await client.request("POST", "/v1/schedules", {
        message: message.trim(),
        ...readTimes(times),
        ...(agent ? { agent } : {}),
        ...(isHere && sessionId ? { session_id: sessionId } : {}),
      });
      onDone();
    } catch (error) {
      setProblem(errorText(error));
      setSaving(false);
    }
  };
  return (
    <form class="schedule-form" data-testid="schedule-form" onSubmit={(event) => (event.preventDefault(), void save())}>
      <label class="field">
        <span>Message</span>
        <textarea
          class="edit"
          rows={2}
          required
          ref={focusFirst}
          value={message}
          data-testid="schedule-message"
          placeholder="What has changed since yesterday?"
          onInput={(event) => setMessage(event.currentTarget.value)}
        />
      </label>
      <div class="row">
        <label class="field">
          <span>Repeat</span>
          <select
            data-testid="schedule-kind"
            value={times.kind}
            onChange={(event) => set({ kind: event.currentTarget.value as ScheduleKind })}
          >
            {Object.entries(SCHEDULE_KINDS).map(([kind, text]) => (
              <option key={kind} value={kind}>
                {text}
              </option>
            ))}
          </select>
        </label>
        <TimeFields times={times} set={set} />
      </div>
      {offer && offer.agents.length > 1 && (
        <label class="field">
          <span>Agent</span>
          <select value={agent} onChange={(event) => setAgent(event.currentTarget.value)}>
            {offer.agents.map(({ name, is_default }) => (
              <option key={name} value={is_default ? "" : name}>
                {name}
              </option>
            ))}
          </select>
        </label>
      )}
      {sessionId && (
        <label class="check">
          <input
            type="checkbox"
            data-testid="schedule-here"
            checked={isHere}
            onChange={(event) => setHere(event.currentTarget.checked)}
          />
          Answer in the open conversation, not in a new one each time
        </label>
      )}
      {problem && (
        <p role="alert" class="problem">
          {problem}
        </p>
      )}
      <div class="row end">
        <button type="button" class="secondary" onClick={onDone}>
          Cancel
        </button>
        <button type="submit" class="primary" data-testid="schedule-save" disabled={isSaving || !message.trim()}>
          Save
        </button>
      </div>
    </form>
  );
}

function TimeFields({ times, set }: { times: ScheduleTimes; set: (part: Partial<ScheduleTimes>) => void }) {
  switch (times.kind) {
    case "interval":
      return (
        <label class="field">
          <span>Minutes</span>
          <input
            type="number"
            min={1}
            max={527_040}
            required
            data-testid="schedule-minutes"
            value={times.minutes}
            onInput={(event) => set({ minutes: event.currentTarget.value })}
          />
        </label>
      );
    case "once":
      return (
        <label class="field">
          <span>Time</span>
          <input
            type="datetime-local"
            required
            data-testid="schedule-at"
            value={times.at}
            onInput={(event) => set({ at: event.currentTarget.value })}
          />
        </label>
      );
    case "cron":
      return (
        <label class="field">
          <span>Cron expression</span>
          <input
            required
            placeholder="0 9 * * mon-fri"
            data-testid="schedule-cron"
            value={times.cron}
            onInput={(event) => set({ cron: event.currentTarget.value })}
          />
        </label>
      );
    default:
      return (
        <>
          {times.kind === "weekly" && (
            <label class="field">
              <span>Day</span>
              <select value={times.weekday} onChange={(event) => set({ weekday: event.currentTarget.value })}>
                {WEEKDAYS.map((name, day) => (
                  <option key={name} value={`${day}`}>
                    {name}
                  </option>
                ))}
              </select>
            </label>
          )}
          <label class="field">
            <span>Time</span>
            <input
              type="time"
              required
              data-testid="schedule-time"
              value={times.time}
              onInput={(event) => set({ time: event.currentTarget.value })}
            />
          </label>
        </>
      );
  }
}
