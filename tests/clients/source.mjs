// EventSource, as browsers have it: it reconnects after every close, until a 204.
import { EventSource } from "eventsource";
import { print, url } from "./script_io.mjs";

const source = new EventSource(url);
const ids = [];
let opened = 0;
source.onopen = () => { opened += 1; };
source.onmessage = (event) => {
  ids.push(event.lastEventId);
  print({ id: event.lastEventId, event: JSON.parse(event.data), opened });
};
source.onerror = (event) => {
  if (source.readyState === EventSource.CLOSED) print({ closed: event.code ?? null, opened, ids });
};
