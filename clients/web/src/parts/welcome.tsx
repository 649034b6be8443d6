/** The welcome: three things to try where the demo is offered, and messages to begin with. */

import { useEffect, useState } from "preact/hooks";
import { brand } from "../brand.ts";
import { Icon, type IconName, Logo } from "../icons.tsx";
import { client, type Offer } from "../server.ts";

const EXAMPLES = [
  "What is a turn?",
  "What happens when the process is killed?",
  "What does review do with evidence?",
  "What happens when a reader is slow?",
];

interface WelcomeProps {
  offer: Offer | null;
  /** The agent that will answer. */
  agent: string | undefined;
  onAsk: (message: string, agent?: string) => void;
}

export function Welcome({ offer, agent, onAsk }: WelcomeProps) {
  const [examples, setExamples] = useState<string[]>([]);
  const [isTurnwire, setTurnwire] = useState(false);
  const hasDocuments = !!offer?.takes_documents;
  useEffect(() => {
    if (!hasDocuments) return setExamples([]);
    client.documents.list({ limit: 50 }).then(
      ({ documents }) => {
        const isOwn =
          documents.some((document) => document.shared && document.title === "Turnwire") &&
          documents.some((document) => document.name.endsWith("concepts.md"));
        setTurnwire(isOwn);
        setExamples(
          isOwn ? EXAMPLES : documents.slice(0, 4).map((document) => `What does “${document.title || document.name}” say?`),
        );
      },
      () => {},
    );
  }, [hasDocuments]);
  const chosen = offer?.agents.find(({ name }) => name === agent) ?? offer?.agents.find(({ is_default }) => is_default);
  const answersFromDocuments = !chosen || chosen.name === "documents" || offer?.agents.length === 1;
  const offered = brand.starters ?? (chosen?.starters?.length ? chosen.starters : answersFromDocuments ? examples : []);
  const deeds = deedsOf(offer, isTurnwire);
  // A deed is not offered twice.
  const starters = brand.starters ?? offered.filter((starter) => !deeds.some(({ message }) => message === starter));
  return (
    <div class={deeds.length ? "welcome full" : "welcome"} data-testid="welcome">
      <Logo />
      <h1>{brand.welcome ?? "Ask a question"}</h1>
      <p>
        Searches, tool calls and text appear as they happen. You can close the tab: the answer continues on the server.
      </p>
      {deeds.length > 0 && (
        <ul class="deeds" aria-label="Things to try">
          {deeds.map(({ icon, title, text, message, agent: name }) => (
            <li key={title}>
              <button type="button" data-testid="deed" onClick={() => onAsk(message, name)}>
                <Icon name={icon} />
                <strong>{title}</strong>
                <span>{text}</span>
              </button>
            </li>
          ))}
        </ul>
      )}
      {chosen?.description && offer!.agents.length > 1 && (
        <p class="faint" data-testid="agent-description">
          <strong>{chosen.name}</strong>: {chosen.description}
        </p>
      )}
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

interface Deed {
  icon: IconName;
  title: string;
  text: string;
  message: string;
  agent: string;
}

/** Returns the things to try: two turns of the demo, and a question to the documentation. */
function deedsOf(offer: Offer | null, isTurnwire: boolean): Deed[] {
  const [watch, approve] = offer?.agents.find(({ name }) => name === "demo")?.starters ?? [];
  if (!watch || !approve) return [];
  const deeds: Deed[] = [
    {
      icon: "play",
      title: "Watch a turn",
      text: "Thirty seconds of a scripted demo. Reload the page in the middle.",
      message: watch,
      agent: "demo",
    },
    {
      icon: "hand",
      title: "Approve a tool",
      text: "A scripted tool that waits until you decide.",
      message: approve,
      agent: "demo",
    },
  ];
  if (isTurnwire && offer?.agents.some(({ name }) => name === "documents")) {
    const [message] = EXAMPLES;
    deeds.push({ icon: "book", title: "Ask the documentation", text: message!, message: message!, agent: "documents" });
  }
  return deeds;
}
