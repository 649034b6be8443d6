/** The figures of a turn. */

import type { TurnView } from "../../../js/src/index.ts";
import { count, duration, outcomeText, statusOf } from "../format.ts";
import { dollars, type Prices, turnCost } from "./prices.ts";
import type { TimedEvent } from "./log.ts";
import type { Timing } from "./timing.ts";

export type Fact = [name: string, value: string];

export function factsOf(view: TurnView, timing: Timing, prices: Prices, isUnreachable: boolean): Fact[] {
  const state = view.outcome ? outcomeText(view.outcome) : isUnreachable ? "Server unreachable…" : statusOf(view);
  const facts: Fact[] = [
    ["Outcome", state],
    ["Duration", duration(timing.total)],
    ["First event", timing.firstEvent === null ? "–" : duration(timing.firstEvent)],
    ["First token", timing.firstToken === null ? "–" : duration(timing.firstToken)],
    ["Answer", answerText(timing)],
    ["Longest silence", timing.gaps[0] ? duration(timing.gaps[0].to - timing.gaps[0].from) : "none"],
    ["Agent", view.agent],
  ];
  const usage = view.usage;
  if (usage?.input_tokens !== undefined || usage?.output_tokens !== undefined) {
    const [sent, received] = [usage.input_tokens, usage.output_tokens].map((tokens) =>
      tokens === undefined ? "?" : tokens.toLocaleString("en"),
    );
    facts.push(["Model tokens", `${sent} in, ${received} out`]);
  }
  const cost = turnCost(timing.steps, prices);
  if (cost) {
    const rest = cost.unpriced.length ? `, without ${cost.unpriced.join(", ")}` : "";
    facts.push(["Cost", `${dollars(cost.dollars)}${rest}`]);
  }
  return facts;
}

/** The positions that each worker has written, if there was more than one: another continues after a restart. */
export function workerFacts(events: readonly TimedEvent[]): Fact[] {
  const starts = [0];
  events.forEach(({ event, epoch }, index) => {
    const isRestart = event.type === "restart" && event.reason !== "forked";
    // A worker that is being stopped says so, and writes nothing more.
    const before = events[index - 1];
    const isHandedOver = before?.event.type === "status" && before.epoch > 0 && before.epoch < epoch && !isRestart;
    if (isRestart || isHandedOver) starts.push(index);
  });
  if (starts.length < 2) return [];
  const parts = starts.map((start, number) => {
    const last = (starts[number + 1] ?? events.length) - 1;
    return `${number + 1}: ${events[start]!.position}–${events[last]!.position}`;
  });
  return [["Workers", parts.join(", ")]];
}

/** The pieces of an answer are what the agent sent at once: a model's tokens, words, or whole sentences. */
function answerText({ firstToken, pieces }: Timing): string {
  const seconds = firstToken === null ? 0 : (pieces.at(-1)! - firstToken) / 1000;
  const text = count(pieces.length, "piece");
  return seconds > 0.05 ? `${text}, ${Math.round(pieces.length / seconds)}/s` : text;
}

export function Facts({ facts }: { facts: Fact[] }) {
  return (
    <dl class="facts" data-testid="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
