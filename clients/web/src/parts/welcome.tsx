/** What there is to see before anything was asked. */

import { useEffect, useState } from "preact/hooks";
import { Icon, Logo } from "../icons.tsx";
import { client } from "../server.ts";

const OF_ITSELF = [
  "What is a turn?",
  "What happens when the process is killed?",
  "What does review do with evidence?",
  "What happens when a reader is slow?",
];

export function Welcome({ hasDocuments, onAsk }: { hasDocuments: boolean; onAsk: (message: string) => void }) {
  const [examples, setExamples] = useState<string[]>([]);
  useEffect(() => {
    if (!hasDocuments) return setExamples([]);
    client.documents.list({ limit: 50 }).then(
      ({ documents }) => {
        const isItself =
          documents.some((one) => one.shared && one.title === "Turnwire") &&
          documents.some((one) => one.name.endsWith("concepts.md"));
        setExamples(
          isItself ? OF_ITSELF : documents.slice(0, 4).map((one) => `What does “${one.title || one.name}” say?`),
        );
      },
      () => {},
    );
  }, [hasDocuments]);
  return (
    <div class="welcome" data-testid="welcome">
      <Logo />
      <h1>Ask, and watch it work</h1>
      <p>
        Every search, every tool and every word appears as it happens. Close the tab if you like: the answer goes on
        without you.
      </p>
      {examples.length > 0 && (
        <ul class="examples" aria-label="Questions to begin with">
          {examples.map((example) => (
            <li key={example}>
              <button type="button" data-testid="example" onClick={() => onAsk(example)}>
                <span>{example}</span>
                <Icon name="handoff" />
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
