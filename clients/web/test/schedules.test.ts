import assert from "node:assert/strict";
import { test } from "node:test";
import { NO_TIMES, readTimes, repetition, when } from "../src/schedule_times.ts";

const timezone = Intl.DateTimeFormat().resolvedOptions().timeZone;

test("times of the form become the fields of the request", () => {
  assert.deepEqual(readTimes({ ...NO_TIMES, time: "08:05" }), { cron: "5 8 * * *", timezone });
  assert.deepEqual(readTimes({ ...NO_TIMES, kind: "weekly", weekday: "6" }), { cron: "0 9 * * 6", timezone });
  assert.deepEqual(readTimes({ ...NO_TIMES, kind: "interval", minutes: "1.5" }), { every: 90 });
  assert.deepEqual(readTimes({ ...NO_TIMES, kind: "once", at: "2027-01-31T09:00" }), {
    at: new Date(2027, 0, 31, 9).getTime(),
  });
});

test("repetition is told in words where it is simple", () => {
  const shown = (fields: object) => repetition({ cron: null, every: null, timezone, ...fields });
  assert.equal(shown({ cron: "0 9 * * mon-fri" }), "Monday to Friday at 09:00");
  assert.equal(shown({ cron: "0 9 * * 0" }), "Every Sunday at 09:00");
  assert.equal(shown({ cron: "*/5 * * * *", timezone: "Asia/Tokyo" }), "*/5 * * * * (Asia/Tokyo)");
  assert.equal(shown({ every: 3600 }), "Every hour");
  assert.equal(shown({ every: 5400 }), "Every 90 minutes");
  assert.equal(shown({ every: 10 }), "Every 10 seconds");
  assert.equal(shown({}), "Once");
});

test("a time has its day unless that is today, and its year unless it is this one", () => {
  const now = new Date(2027, 0, 31, 8);
  assert.equal(when(new Date(2027, 0, 31, 9).toISOString(), now), "09:00");
  assert.match(when(new Date(2027, 1, 1, 9).toISOString(), now), /Mon.*1 Feb.*09:00/);
  assert.match(when(new Date(2028, 1, 1, 9).toISOString(), now), /2028/);
});
