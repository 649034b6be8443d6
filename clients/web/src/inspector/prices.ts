/** The cost of model calls, where the server has prices. */

import type { Usage } from "../../../js/src/index.ts";
import { client } from "../server.ts";
import type { Step } from "./timing.ts";

/** In US dollars per million tokens. */
export interface Price {
  input: number;
  output: number;
  cached_input: number | null;
}

export type Prices = Record<string, Price>;

export const fetchPrices = async (): Promise<Prices> =>
  (await client.request<{ prices: Prices }>("GET", "/v1/prices")).prices;

/** Returns the cost of a model call in US dollars, or null without a price. Unknown numbers count as none. */
export function callCost(usage: Usage & { model?: string }, prices: Prices): number | null {
  const price = prices[usage.model ?? ""];
  if (!price) return null;
  const input = usage.input_tokens ?? 0;
  const cached = Math.min(usage.cached_input_tokens ?? 0, input);
  const output = usage.output_tokens ?? 0;
  return ((input - cached) * price.input + cached * (price.cached_input ?? price.input) + output * price.output) / 1e6;
}

/** Returns the cost of a turn, and the models without a price; null if no model has one. */
export function turnCost(steps: readonly Step[], prices: Prices): { dollars: number; unpriced: string[] } | null {
  const calls = steps.flatMap(({ usage }) => usage ?? []);
  const costs = calls.map((usage) => callCost(usage, prices));
  if (costs.every((cost) => cost === null)) return null;
  const unpriced = calls.filter((_, index) => costs[index] === null).map(({ model }) => model ?? "an unnamed model");
  return { dollars: costs.reduce<number>((sum, cost) => sum + (cost ?? 0), 0), unpriced: [...new Set(unpriced)] };
}

export const dollars = (amount: number): string => `$${amount.toFixed(amount >= 1 ? 2 : 4)}`;
