// The client against a real server: runs the scene in its arguments and prints one JSON value per line.
import { text } from "node:stream/consumers";
import { applyEvent, EMPTY_VIEW, foldTurn, TextSplitter, TurnwireClient, TurnwireSocket, viewOfSnapshot } from "@turnwire/client";

const [scene, url, ...options] = process.argv.slice(2);
const print = (value) => console.log(JSON.stringify(value));
const client = new TurnwireClient({ url, retry: { first: 1, most: 20, attempts: 1_000, heartbeat: 4_000 } });
const states = [];
client.onConnection((state) => states.at(-1) === state || states.push(state));

/** Returns the view under the server's field names. */
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
  /** Starts turns one after the other; reads each, and again from a middle position. */
  async ask(...messages) {
    for (const message of messages) {
      const turn = await client.start({ message, sessionId: "mine" });
      const whole = await read(turn.events());
      const after = whole.ids[Math.floor(whole.ids.length / 2)];
      const rest = await read(client.turn(turn.id).events({ after }));
      const snapshot = await turn.snapshot();
      print({ ...whole, turn_id: turn.id, rest: rest.ids, after, snapshot: shown(viewOfSnapshot(snapshot)) });
    }
  },

  /** Prints each event of a turn as it comes. */
  async tell(message, agent) {
    const turn = await client.start({ message, agent });
    print({ turn_id: turn.id });
    const events = turn.events({ onControl: ({ type }) => print({ control: type }) });
    print(await read(events, { seen: (item) => print({ id: brief(item), type: item.event?.type }) }));
  },

  async join(turnId, after) {
    print(await read(client.turn(turnId).events(after === undefined ? {} : { after })));
  },

  /** Runs its own tools and answers questions; then reads the turn again, with the same handlers. */
  async answer(transport, ...messages) {
    const socket = transport === "socket" ? new TurnwireSocket(client) : client;
    const ran = [];
    const run = (name, output) => ({ name, parameters: { type: "object" }, run: (args) => (ran.push([name, args]), output) });
    const onQuestion = ({ prompt, schema }) => (ran.push([prompt, schema.enum]), schema.enum.at(-1));
    const handlers = { tools: [run("locate", "Bern"), run("clock", "noon")], onQuestion };
    for (const message of messages) {
      const turn = await socket.start({ message, ...handlers });
      const phases = new Set();
      const { view } = await read(turn.events(), { seen: (_, { phase }) => phases.add(phase) });
      await read(socket.turn(turn.id, handlers).events());
      print({ text: view.text, phases: [...phases], questions: view.questions, ran: ran.splice(0) });
    }
    socket.close?.();
  },

  /** Starts a turn whose tools are run after a reload. */
  async leave(message) {
    const tools = [{ name: "locate", parameters: { type: "object" } }, { name: "clock", parameters: { type: "object" } }];
    const turn = await client.start({ message, tools });
    for await (const { event } of turn.events()) if (event?.runs_on) break;
    print({ turn_id: turn.id });
  },

  async reopen(turnId) {
    const failing = { name: "locate", run: () => { throw new Error("no satellite"); } };
    const { view } = await read(client.turn(turnId, { tools: [failing] }).events());
    print({ outcome: view.outcome, error: view.error?.error, steps: view.steps });
  },

  /** Stops a turn after its first token. */
  async stop(message) {
    const turn = await client.start({ message });
    let stopped;
    const result = await read(turn.events(), {
      seen: ({ event }) => {
        if (event?.type === "token") stopped ??= turn.cancel();
      },
    });
    print({ ...result, stopped: (await stopped).outcome, again: (await client.cancel(turn.id)).outcome });
  },

  /** Decides about each call at once: approves the first and denies the second. */
  async decide(...messages) {
    for (const [index, message] of messages.entries()) {
      const turn = await client.start({ message });
      const decision = index ? { approved: false, reason: "too much" } : { approved: true };
      const deciding = [];
      const result = await read(turn.events(), {
        seen: ({ event }, view) => {
          if (event?.type !== "approval_request") return;
          const { call_id, args } = view.approvals[0];
          deciding.push(turn.decide(call_id, { ...decision, args }));
        },
      });
      await Promise.all(deciding);
      const conflict = await turn.decide("c1", { approved: !decision.approved }).catch((error) => error.code);
      print({ ...result, conflict });
    }
  },

  /** Follows a session until a number of turns have ended. */
  async session(sessionId, count, after) {
    const ids = [];
    let left = Number(count);
    for await (const item of client.followSession(sessionId, after ? { after } : {})) {
      ids.push(brief(item));
      if (item.event?.type === "done" && --left === 0) break;
    }
    print({ ids, states });
  },

  /** Runs several turns on one socket; stops the first, and reads each again from a middle position. */
  async socket(...messages) {
    const socket = new TurnwireSocket(client);
    const turns = await Promise.all(messages.map((message) => socket.start({ message })));
    const cancelling = socket.start({ message: "wait" }).then(async (turn) => {
      const events = turn.events();
      for await (const { event } of events) if (event?.type === "token") await turn.cancel();
      return (await read(socket.turn(turn.id).events())).view;
    });
    const results = await Promise.all(turns.map((turn) => read(turn.events())));
    for (const [index, { ids }] of results.entries()) {
      const after = ids[Math.floor(ids.length / 2)];
      results[index].rest = (await read(socket.turn(turns[index].id).events({ after }))).ids;
      results[index].none = (await read(socket.turn(turns[index].id).events({ after: ids.at(-1) }))).ids;
      results[index].reset = (await read(socket.turn(turns[index].id).events({ after: `${ids.length}.77` }))).ids;
      results[index].turn_id = turns[index].id;
    }
    print({ told: results, stopped: (await cancelling).outcome });
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
    print({ refused, denied, paid: paid.view.text, closed: closed ?? rest.length });
  },

  /** Folds the logs on standard input, one per line, with the server's own fold. */
  async fold() {
    for (const line of (await text(process.stdin)).split("\n")) {
      const { log, snapshot } = JSON.parse(line);
      print([shown(foldTurn(log)), shown(viewOfSnapshot(snapshot))]);
    }
  },

  /** Reads a text stream, resumed by byte offset. */
  async text(turnId) {
    const splitter = new TextSplitter();
    const parsed = { events: 0, text: "", parts: 0 };
    for (let whole = false; !whole; ) {
      try {
        const response = await fetch(`${url}/v1/turns/${turnId}/events?wire=three_phase_text&offset=${splitter.offset}`);
        if (!response.ok) throw new Error(await response.text());
        parsed.parts += 1;
        for await (const bytes of response.body ?? []) {
          for (const piece of splitter.feed(bytes)) {
            if (piece.kind === "event") parsed.events += 1;
            else parsed.text += piece.text;
          }
        }
        parsed.trailer = splitter.end().trailer;
        whole = true;
      } catch (error) {
        if (error.code !== "broken_stream" && !(error instanceof TypeError)) throw error;
      }
    }
    print(parsed);
  },

  /** Calls the document routes and other JSON routes. */
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
    print({ agents, found, quote: passage.quote, gone, title: session.title, listed, text: view.text, turns: turns.length, transcript, left, principal, used });
  },
};

await scenes[scene](...options);
