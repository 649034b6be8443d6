/** The phases, steps and silences of a log. Times are milliseconds since the start of the turn. */

import type { TurnEvent, Usage } from "../../../js/src/index.ts";
import type { TimedEvent } from "./log.ts";

export type StepKind = "model" | "reasoning" | "agent" | "tool" | "search" | "review" | "waiting";

interface Span {
  name: string;
  from: number;
  to: number;
}

export interface Phase extends Span {
  kind: "queued" | "working" | "answering";
}

/** A step of the turn, part of the step above it that is less deep. The same rules as in `reporting/timeline.py`. */
export interface Step extends Span {
  kind: StepKind;
  /** The id of the call or search; empty for other kinds. */
  id: string;
  path: readonly string[];
  /** The positions of its first and last event. */
  first: number;
  last: number;
  depth: number;
  isOpen: boolean;
  isBad: boolean;
  /** True if a restart took it back. */
  isVoid: boolean;
  usage?: Usage & { model?: string };
}

export interface Timing {
  total: number;
  firstEvent: number | null;
  firstToken: number | null;
  phases: Phase[];
  steps: Step[];
  /** The times of the pieces of the answer. */
  pieces: number[];
  /** Silences, the longest first. */
  gaps: { from: number; to: number }[];
}

/** Shorter silences are not noticeable. */
const MIN_GAP = 700;
const MAX_GAPS = 5;
const ROOT = "";

interface Node extends Step {
  parent: Node | null;
}

/** The part of a turn that one agent path did: its step, the call that started it, and the model call under way. */
interface Run {
  node: Node | null;
  owner: Node | null;
  /** When the agent had all input for its next model call. */
  ready: number;
  model: Node | null;
  reasoning: Node | null;
}

/** `startedAt` is when a worker claimed the turn (Unix time in ms), `now` the end of a turn that still runs. */
export function timingOf(events: readonly TimedEvent[], now: number | null, startedAt: number | null = null): Timing {
  const start = events[0]?.at ?? 0;
  const timing = new TimingFold(Math.max(events.at(-1)?.at ?? start, now ?? 0) - start);
  for (const { at, position, event } of events) timing.add(event, at - start, position);
  return timing.finish(startedAt === null ? null : Math.max(0, startedAt - start));
}

class TimingFold {
  #timing: Timing;
  #nodes: Node[] = [];
  #open = new Map<string, Node>();
  #runs = new Map<string, Run>([[ROOT, { node: null, owner: null, ready: 0, model: null, reasoning: null }]]);
  #before = 0;
  #waiting = 0;

  constructor(total: number) {
    this.#timing = { total, firstEvent: null, firstToken: null, phases: [], steps: [], pieces: [], gaps: [] };
  }

  add(event: TurnEvent, time: number, position: number): void {
    const timing = this.#timing;
    if (time - this.#before >= MIN_GAP && !this.#waiting) timing.gaps.push({ from: this.#before, to: time });
    this.#before = time;
    if (position > 2) timing.firstEvent ??= time;
    const path = event.agent_path ?? [];
    const run = this.#run(path, time, position);
    switch (event.type) {
      case "token":
        this.#model(run, path, position);
        if (path.length) break;
        timing.firstToken ??= time;
        timing.pieces.push(time);
        break;
      case "reasoning": {
        const model = this.#model(run, path, position);
        run.reasoning ??= this.#begin("reasoning", "", "reasoning", path, time, position, model);
        Object.assign(run.reasoning, { to: time, last: position, isOpen: false });
        break;
      }
      case "usage": {
        const model = this.#model(run, path, position);
        const { type: _, agent_path: __, ...usage } = event;
        Object.assign(model, { name: event.model ?? "model", to: time, last: position, isOpen: false, usage });
        this.#nodes.push(model);
        finishModel(run, time);
        break;
      }
      case "tool_call":
        this.#model(run, path, position);
        this.#open.set(
          `t${event.call_id}`,
          this.#begin("tool", event.call_id, event.tool, path, time, position, run.node),
        );
        break;
      case "tool_result":
        this.#end(`t${event.call_id}`, time, position, !event.success);
        finishModel(this.#runs.get(keyOf(path)) ?? run, time);
        break;
      case "search":
        if (event.phase === "started") {
          const node = this.#begin("search", event.step_id, event.query, path, time, position, run.node);
          this.#open.set(`s${event.step_id}`, node);
        } else {
          this.#end(`s${event.step_id}`, time, position, event.phase === "failed");
          finishModel(run, time);
        }
        break;
      case "review": {
        const name = event.verdict === "approved" ? "evidence is sufficient" : "evidence is insufficient";
        const node = this.#begin("review", event.step_id, name, path, time, position, run.node);
        Object.assign(node, { to: time, isOpen: false, isBad: event.verdict === "rejected" });
        finishModel(run, time);
        break;
      }
      case "approval_request": {
        this.#waiting++;
        const name = `waiting for approval: ${event.tool}`;
        this.#open.set(
          `a${event.call_id}`,
          this.#begin("waiting", event.call_id, name, path, time, position, run.node),
        );
        break;
      }
      case "approval_response": {
        this.#waiting--;
        this.#end(`a${event.call_id}`, time, position, !event.approved);
        // The call is logged before the decision but runs after it.
        const call = this.#open.get(`t${event.call_id}`);
        if (call) call.from = time;
        finishModel(run, time);
        break;
      }
      case "restart":
        for (const node of this.#nodes) {
          if (node.first <= event.from_position && !node.isOpen) continue;
          Object.assign(node, { isVoid: true, to: node.isOpen ? time : node.to, isOpen: false });
        }
        this.#open.clear();
        this.#runs = new Map([[ROOT, { node: null, owner: null, ready: time, model: null, reasoning: null }]]);
        break;
      case "done":
        for (const node of this.#nodes) {
          if (!node.isOpen) continue;
          node.isOpen = false;
          node.isBad = event.outcome !== "completed";
          // Nothing tells when an agent ends that no call started: it was there until its last event.
          if (node.kind !== "agent") node.to = time;
        }
    }
  }

  finish(started: number | null): Timing {
    const timing = this.#timing;
    for (const node of this.#nodes) {
      if (node.isOpen) node.to = timing.total;
      node.from = Math.max(node.from, Math.min(started ?? 0, node.to));
    }
    timing.steps = tree(this.#nodes);
    timing.gaps = timing.gaps
      .sort((first, other) => other.to - other.from - (first.to - first.from))
      .slice(0, MAX_GAPS);
    timing.phases = phasesOf(timing, started);
    return timing;
  }

  /** Returns the run of an agent path, begun by the call of its parent that is open, if any. */
  #run(path: readonly string[], time: number, position: number): Run {
    let run = this.#runs.get(keyOf(path));
    if (!run) {
      const above = path.slice(0, -1);
      const parent = this.#run(above, time, position);
      const owner =
        [...this.#open.values()].findLast((node) => node.kind === "tool" && keyOf(node.path) === keyOf(above)) ?? null;
      const from = owner?.from ?? time;
      const node = this.#begin("agent", "", path.at(-1)!, above, from, position, owner ?? parent.node);
      run = { node, owner, ready: from, model: null, reasoning: null };
      this.#runs.set(keyOf(path), run);
    }
    if (run.node) Object.assign(run.node, { to: time, last: position });
    return run;
  }

  /** Returns the model call under way. The log has no event for its start: it began when its input was there. */
  #model(run: Run, path: readonly string[], position: number): Node {
    return (run.model ??= newNode("model", "", "model", path, run.ready, position, run.node));
  }

  #begin(...values: Parameters<typeof newNode>): Node {
    const node = newNode(...values);
    this.#nodes.push(node);
    return node;
  }

  #end(key: string, time: number, position: number, isBad: boolean): void {
    const node = this.#open.get(key);
    if (!node) return;
    this.#open.delete(key);
    Object.assign(node, { to: time, last: position, isOpen: false, isBad });
    // The sub-agents that the call started have ended with it; a later call of the same names is another run.
    for (const [path, run] of [...this.#runs]) {
      if (!run.node || run.owner !== node) continue;
      Object.assign(run.node, { to: time, isOpen: false, isBad });
      for (const below of [...this.#runs.keys()]) {
        if (below === path || below.startsWith(`${path}/`)) this.#runs.delete(below);
      }
    }
  }
}

const keyOf = (path: readonly string[]): string => path.map(encodeURIComponent).join("/");

function newNode(
  kind: StepKind,
  id: string,
  name: string,
  path: readonly string[],
  from: number,
  position: number,
  parent: Node | null,
): Node {
  const span = { from, to: from, first: position, last: position, depth: 0 };
  return { kind, id, name, path, ...span, isOpen: true, isBad: false, isVoid: false, parent };
}

function finishModel(run: Run, time: number): void {
  Object.assign(run, { ready: time, model: null, reasoning: null });
}

/** Returns the steps with the parts of each after it, in order of time, and with their depths. */
function tree(nodes: readonly Node[]): Step[] {
  const drawn = new Set(nodes);
  const parts = new Map<Node | null, Node[]>();
  for (const node of [...nodes].sort((first, other) => first.from - other.from)) {
    // A model call without usage is not drawn: its reasoning is part of the agent.
    while (node.parent && !drawn.has(node.parent)) node.parent = node.parent.parent;
    parts.set(node.parent, [...(parts.get(node.parent) ?? []), node]);
  }
  const steps: Step[] = [];
  const add = (parent: Node | null, depth: number) => {
    for (const node of parts.get(parent) ?? []) {
      const { parent: _, ...step } = node;
      steps.push({ ...step, depth });
      add(node, depth + 1);
    }
  };
  add(null, 0);
  return steps;
}

function phasesOf({ firstEvent, firstToken, total, pieces }: Timing, started: number | null): Phase[] {
  const start = Math.min(started ?? firstEvent ?? total, firstToken ?? total);
  const answerStart = firstToken ?? total;
  const phases: Phase[] = [
    { name: "queued", kind: "queued", from: 0, to: start },
    { name: "working", kind: "working", from: start, to: answerStart },
  ];
  if (firstToken !== null) phases.push({ name: "answering", kind: "answering", from: firstToken, to: total });
  return phases.filter((phase) => phase.to > phase.from || (phase.kind === "answering" && pieces.length > 0));
}
