// EventSource, as browsers have it: it comes back after every close, until it is told 204.
import { EventSource } from "eventsource";
import { say, url } from "./script_io.mjs";

const source = new EventSource(url);
const ids = [];
let opened = 0;
source.onopen = () => { opened += 1; };
source.onmessage = (event) => {
  ids.push(event.lastEventId);
  say({ id: event.lastEventId, event: JSON.parse(event.data), opened });
};
source.onerror = (event) => {
  if (source.readyState === EventSource.CLOSED) say({ closed: event.code ?? null, opened, ids });
};
