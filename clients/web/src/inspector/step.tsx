/** The panel of one step: what went in, what came out, and what it cost. */

import { duration } from "../format.ts";
import { IconButton } from "../icons.tsx";
import { Json } from "../parts/steps.tsx";
import { detailsOf, type Entry } from "./details.ts";
import type { TimedEvent } from "./log.ts";
import { kindText, stateText } from "./picture.tsx";
import { callCost, dollars, type Prices } from "./prices.ts";
import type { Step } from "./timing.ts";

interface Props {
  step: Step;
  events: readonly TimedEvent[];
  prices: Prices;
  onClose: () => void;
}

export function StepPanel({ step, events, prices, onClose }: Props) {
  const { input, output } = detailsOf(step, events);
  const facts = [kindText(step), duration(step.to - step.from), stateText(step), ...usageTexts(step, prices)];
  return (
    <section class="step-panel" aria-label={`Step ${step.name}`} data-testid="step-panel">
      <header>
        <div>
          <h2>{[...step.path, step.name].join(" › ")}</h2>
          <span class="faint">{facts.filter(Boolean).join(" · ")}</span>
        </div>
        <IconButton name="close" label="Close the step" testid="step-close" onClick={onClose} />
      </header>
      <div class="step-columns">
        <Side title="Input" entries={input} testid="step-input" />
        <Side title="Output" entries={output} testid="step-output" />
      </div>
    </section>
  );
}

function Side({ title, entries, testid }: { title: string; entries: Entry[]; testid: string }) {
  return (
    <div data-testid={testid}>
      <h3>{title}</h3>
      {entries.length ? (
        entries.map(([label, value], index) => <Json key={index} label={label} value={value} />)
      ) : (
        <p class="faint">Nothing in the log.</p>
      )}
    </div>
  );
}

function usageTexts({ usage }: Step, prices: Prices): string[] {
  if (!usage) return [];
  const texts: string[] = [];
  const add = (tokens: number | undefined, text: string) => {
    if (tokens !== undefined) texts.push(`${tokens.toLocaleString("en")} ${text}`);
  };
  add(usage.input_tokens, "tokens in");
  add(usage.cached_input_tokens, "of them cached");
  add(usage.output_tokens, "tokens out");
  add(usage.reasoning_tokens, "of them reasoning");
  const cost = callCost(usage, prices);
  if (cost !== null) texts.push(dollars(cost));
  return texts;
}
