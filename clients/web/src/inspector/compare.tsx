/** Two turns side by side, on the same time scale. */

import { brand } from "../brand.ts";
import { useEffect } from "preact/hooks";
import { AnswerContent } from "../parts/turn.tsx";
import { Icon } from "../icons.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { filtersOf, inspectAddress, listAddress } from "./address.ts";
import { type Fact, factsOf } from "./facts.tsx";
import { type FoldedTurn, usePrices, useTurn } from "./folded.ts";
import { Missing } from "./missing.tsx";
import { Picture } from "./picture.tsx";

export function ComparePage({ ids }: { ids: [string, string] }) {
  const prices = usePrices();
  const turns: [FoldedTurn, FoldedTurn] = [useTurn(ids[0]), useTurn(ids[1])];
  const scale = Math.max(...turns.map(({ timing }) => timing.total));
  const filters = filtersOf(location.search);
  useEffect(() => {
    document.title = `Two turns · ${brand.name}`;
  }, []);
  const missing = turns.findIndex(({ log }) => log.problem && !log.events.length);
  if (missing >= 0) {
    const { problem, isMissing } = turns[missing]!.log;
    return <Missing turnId={ids[missing]!} problem={problem!} isGone={isMissing} />;
  }
  if (turns.some(({ log }) => !log.events.length)) return <Skeleton />;
  const facts = turns.map(({ final, timing, log }) => factsOf(final, timing, prices, log.isUnreachable));
  return (
    <>
      <nav class="turn-links" aria-label="Turns">
        <a class="quiet" href={listAddress(filters)} data-testid="all-turns">
          <Icon name="menu" /> All turns
        </a>
      </nav>
      <div class="compared" data-testid="compared">
        {turns.map(({ final }, index) => (
          <h1 key={index} class="inspected">
            <a href={inspectAddress(ids[index]!, filters)}>{final.message || "(no text)"}</a>
          </h1>
        ))}
      </div>
      <FactTable facts={facts} />
      <div class="compared">
        {turns.map(({ timing, final }, index) => (
          <section key={index} aria-label={`Turn ${index + 1}`} data-testid="compared-turn">
            <Picture timing={timing} scale={scale} />
            <div class="seen">
              <article class="answer" aria-label="Answer">
                <AnswerContent view={final} />
              </article>
            </div>
          </section>
        ))}
      </div>
    </>
  );
}

function FactTable({ facts }: { facts: Fact[][] }) {
  const names = [...new Set(facts.flatMap((list) => list.map(([name]) => name)))];
  const values = facts.map((list) => new Map(list));
  return (
    <table class="fact-table" data-testid="fact-table">
      <thead>
        <tr>
          <td />
          <th scope="col">First</th>
          <th scope="col">Second</th>
        </tr>
      </thead>
      <tbody>
        {names.map((name) => (
          <tr key={name} class={values[0]!.get(name) === values[1]!.get(name) ? "same" : ""}>
            <th scope="row">{name}</th>
            {values.map((map, index) => (
              <td key={index}>{map.get(name) ?? "–"}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
