/** The times of schedules: what a person picks, what the server takes, and how they are shown. */

export const SCHEDULE_KINDS = {
  daily: "Every day",
  weekdays: "Monday to Friday",
  weekly: "Every week",
  interval: "Every few minutes",
  once: "Once",
  cron: "Cron expression",
} as const;
export type ScheduleKind = keyof typeof SCHEDULE_KINDS;

export const WEEKDAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"] as const;

/** The fields of the form, as texts. */
export interface ScheduleTimes {
  kind: ScheduleKind;
  time: string;
  weekday: string;
  minutes: string;
  at: string;
  cron: string;
}
export const NO_TIMES: ScheduleTimes = { kind: "daily", time: "09:00", weekday: "1", minutes: "60", at: "", cron: "" };

/** Returns the fields of the request; times of day are those of this device's time zone. */
export function readTimes({ kind, time, weekday, minutes, at, cron }: ScheduleTimes): Record<string, string | number> {
  if (kind === "interval") return { every: Math.round(Number(minutes) * 60) };
  if (kind === "once") return { at: new Date(at).getTime() };
  const timezone = ownTimezone();
  if (kind === "cron") return { cron: cron.trim(), timezone };
  const [hour, minute] = time.split(":").map(Number);
  const days = { daily: "*", weekdays: "1-5", weekly: weekday }[kind];
  return { cron: `${minute} ${hour} * * ${days}`, timezone };
}

const ownTimezone = (): string => Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

const UNITS = [
  [86_400, "day"],
  [3_600, "hour"],
  [60, "minute"],
  [1, "second"],
] as const;

/** Returns when a schedule is repeated, in words where they are simple. */
export function repetition({ cron, every, timezone }: { cron: string | null; every: number | null; timezone: string }): string {
  if (every !== null) {
    const [seconds, unit] = UNITS.find(([size]) => every % size === 0)!;
    return every === seconds ? `Every ${unit}` : `Every ${every / seconds} ${unit}s`;
  }
  if (cron === null) return "Once";
  const zone = timezone === ownTimezone() ? "" : ` (${timezone})`;
  const simple = /^(\d\d?) (\d\d?) \* \* (\*|1-5|mon-fri|[0-6])$/i.exec(cron);
  if (!simple) return `${cron}${zone}`;
  const [, minute, hour, days] = simple as unknown as [string, string, string, string];
  const day = days === "*" ? "Every day" : days.length > 1 ? "Monday to Friday" : `Every ${WEEKDAYS[Number(days)]}`;
  return `${day} at ${hour.padStart(2, "0")}:${minute.padStart(2, "0")}${zone}`;
}

/** Returns a time of the server as this device shows it: the day only if it is not today. */
export function when(time: string, now = new Date()): string {
  const date = new Date(time);
  const clock = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === now.toDateString()) return clock;
  const year = date.getFullYear() === now.getFullYear() ? {} : { year: "numeric" as const };
  return `${date.toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short", ...year })}, ${clock}`;
}
