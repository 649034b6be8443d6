// The client against a real server: it is told what to do in its arguments, and prints one JSON value a line.
import { text } from "node:stream/consumers";
import { applyEvent, EMPTY_VIEW, foldTurn, TextSplitter, TurnwireClient, TurnwireSocket, viewOfSnapshot } from "@turnwire/client";

const [scene, url, ...told] = process.argv.slice(2);
const say = (value) => console.log(JSON.stringify(value));
const client = new TurnwireClient({ url, retry: { first: 1, most: 20, attempts: 1_000, heartbeat: 4_000 } });
const states = [];
client.onConnection((state) => states.at(-1) === state || states.push(state));

/** What the view shows, in the server's words. */
const shown = ({ memory, ...view }) => view;
const brief = (item) => item.id ?? item.control;

async function read(events, { seen } = {}) {
  let view = EMPTY_VIEW;
  const ids = [];
  for await (const item of events) {
    ids.push(brief(item));
    view = applyEvent(view, item);
    seen?.(item, view);
  }
  return { ids, view: shown(view), states };
}

const scenes = {
  /** Asks one thing after the other; reads each, and once more from a place in the middle. */
  async ask(...messages) {
    for (const message of messages) {
      const turn = await client.start({ message, sessionId: "mine" });
      const whole = await read(turn.events());
      const after = whole.ids[Math.floor(whole.ids.length / 2)];
      const rest = await read(client.turn(turn.id).events({ after }));
      const snapshot = await turn.snapshot();
      say({ ...whole, turn_id: turn.id, rest: rest.ids, after, snapshot: shown(viewOfSnapshot(snapshot)) });
    }
  },

  /** Says each event of a turn as it comes. */
  async tell(message, agent) {
    const turn = await client.start({ message, agent });
    say({ turn_id: turn.id });
    const events = turn.events({ onControl: ({ type }) => say({ control: type }) });
    say(await read(events, { seen: (item) => say({ id: brief(item), type: item.event?.type }) }));
  },

  async join(turnId, after) {
    say(await read(client.turn(turnId).events(after === undefined ? {} : { after })));
  },

  /** Stops a turn as soon as it has said something. */
  async stop(message) {
    const turn = await client.start({ message });
    let stopped;
    const told = await read(turn.events(), {
      seen: ({ event }) => {
        if (event?.type === "token") stopped ??= turn.cancel();
      },
    });
    say({ ...told, stopped: (await stopped).outcome, again: (await client.cancel(turn.id)).outcome });
  },

  /** Decides about each call as soon as it is asked for: the first is approved, the second is not. */
  async decide(...messages) {
    for (const [index, message] of messages.entries()) {
      const turn = await client.start({ message });
      const decision = index ? { approved: false, reason: "too much" } : { approved: true };
      const deciding = [];
      const told = await read(turn.events(), {
        seen: ({ event }, view) => {
          if (event?.type !== "approval_request") return;
          const { call_id, args } = view.approvals[0];
          deciding.push(turn.decide(call_id, { ...decision, args }));
        },
      });
      await Promise.all(deciding);
      const conflict = await turn.decide("c1", { approved: !decision.approved }).catch((error) => error.code);
      say({ ...told, conflict });
    }
  },

  /** Follows a session until so many turns have ended. */
  async session(sessionId, count, after) {
    const ids = [];
    let left = Number(count);
    for await (const item of client.followSession(sessionId, after ? { after } : {})) {
      ids.push(brief(item));
      if (item.event?.type === "done" && --left === 0) break;
    }
    say({ ids, states });
  },

  /** Several turns at once on one socket; the first is stopped, each is read once more from a place in the middle. */
  async socket(...messages) {
    const socket = new TurnwireSocket(client);
    const turns = await Promise.all(messages.map((message) => socket.start({ message })));
    const cancelling = socket.start({ message: "wait" }).then(async (turn) => {
      const events = turn.events();
      for await (const { event } of events) if (event?.type === "token") await turn.cancel();
      return (await read(socket.turn(turn.id).events())).view;
    });
    const told = await Promise.all(turns.map((turn) => read(turn.events())));
    for (const [index, { ids }] of told.entries()) {
      const after = ids[Math.floor(ids.length / 2)];
      told[index].rest = (await read(socket.turn(turns[index].id).events({ after }))).ids;
      told[index].none = (await read(socket.turn(turns[index].id).events({ after: ids.at(-1) }))).ids;
      told[index].reset = (await read(socket.turn(turns[index].id).events({ after: `${ids.length}.77` }))).ids;
      told[index].turn_id = turns[index].id;
    }
    say({ told, stopped: (await cancelling).outcome });
    const refused = await socket.turn("nobody").events().next().catch((error) => error.code);
    const denied = await socket.start({ message: "hi", agent: "nobody" }).catch((error) => error.code);
    const asking = await socket.start({ message: "pay" });
    const paid = await read(asking.events(), {
      seen: ({ event }) => event?.type === "approval_request" && void asking.decide(event.call_id, { approved: true }),
    });
    const open = socket.turn(turns[0].id).events();
    await open.next();
    socket.close();
    const rest = [];
    const closed = await (async () => { for await (const item of open) rest.push(item); })().catch((error) => error.code);
    say({ refused, denied, paid: paid.view.text, closed: closed ?? rest.length });
  },

  /** Folds the logs that are told on standard input, one a line, and what the server makes of them. */
  async fold() {
    for (const line of (await text(process.stdin)).split("\n")) {
      const { log, snapshot } = JSON.parse(line);
      say([shown(foldTurn(log)), shown(viewOfSnapshot(snapshot))]);
    }
  },

  /** A text stream, gone on with by byte. */
  async text(turnId) {
    const splitter = new TextSplitter();
    const told = { events: 0, text: "", parts: 0 };
    for (let whole = false; !whole; ) {
      try {
        const response = await fetch(`${url}/v1/turns/${turnId}/events?wire=three_phase_text&offset=${splitter.offset}`);
        if (!response.ok) throw new Error(await response.text());
        told.parts += 1;
        for await (const bytes of response.body ?? []) {
          for (const piece of splitter.feed(bytes)) {
            if (piece.kind === "event") told.events += 1;
            else told.text += piece.text;
          }
        }
        told.trailer = splitter.end().trailer;
        whole = true;
      } catch (error) {
        if (error.code !== "broken_stream" && !(error instanceof TypeError)) throw error;
      }
    }
    say(told);
  },

  /** Documents and everything else that is asked and answered once. */
  async rest() {
    const agents = (await client.agents()).map(({ name }) => name);
    const file = new File(["# Tide\n\nHigh water is at noon.\n"], "tide.md");
    const made = await client.documents.upload(file, () => {});
    const found = (await client.documents.list({ search: "tide" })).documents.map(({ name }) => name);
    const { passage } = await client.documents.get(made.id, { start: 8, end: 18 });
    await client.documents.delete(made.id);
    const gone = await client.documents.get(made.id).catch((error) => [error.status, error.code]);
    const session = await client.sessions.create({ id: "mine", title: "One" });
    await client.sessions.rename("mine", "Two");
    const listed = (await client.sessions.list()).sessions.map(({ title }) => title);
    const turn = await client.start({ message: "plain", sessionId: "mine" });
    const { view } = await read(turn.events());
    const { turns } = await client.sessions.get("mine");
    const { transcript } = await client.sessions.export("mine");
    await client.sessions.delete("mine");
    const left = (await client.sessions.list()).sessions.length;
    const { principal } = await client.me();
    const { used } = await client.budget();
    say({ agents, found, quote: passage.quote, gone, title: session.title, listed, text: view.text, turns: turns.length, transcript, left, principal, used });
  },
};

await scenes[scene](...told);
