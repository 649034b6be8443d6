/** The welcome text, with example questions. */

import { useEffect, useState } from "preact/hooks";
import { brand } from "../brand.ts";
import { Icon, Logo } from "../icons.tsx";
import { client } from "../server.ts";

const EXAMPLES = [
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
        const isTurnwire =
          documents.some((document) => document.shared && document.title === "Turnwire") &&
          documents.some((document) => document.name.endsWith("concepts.md"));
        setExamples(
          isTurnwire ? EXAMPLES : documents.slice(0, 4).map((document) => `What does “${document.title || document.name}” say?`),
        );
      },
      () => {},
    );
  }, [hasDocuments]);
  const starters = brand.starters ?? examples;
  return (
    <div class="welcome" data-testid="welcome">
      <Logo />
      <h1>{brand.welcome ?? "Ask a question"}</h1>
      <p>
        Searches, tool calls and text appear as they happen. You can close the tab: the answer continues on the server.
      </p>
      {starters.length > 0 && (
        <ul class="examples" aria-label="Example questions">
          {starters.map((example) => (
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
