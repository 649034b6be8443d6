/** A shared session, read-only: questions, answers and their sources, for anybody who has the link. */

import { Fragment, render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { sliceText } from "../../js/src/view.ts";
import { headingIn, origin } from "./format.ts";
import { Skeleton } from "./parts/skeleton.tsx";
import { AnswerView } from "./text/answer.ts";

interface SharedCitation {
  index: number;
  title?: string;
  url?: string;
  heading?: string;
  page_number?: number;
  supporting_quote?: string;
}

interface SharedTurn {
  agent: string;
  message: string;
  phase: "queued" | "running" | "waiting" | "ended";
  outcome: "completed" | "failed" | "cancelled" | "interrupted" | null;
  content: string;
  inputs: { content: string; answer_offset: number }[];
  mode: string | null;
  model: string | null;
  citations: SharedCitation[];
  steps: { kind: "tool" | "search" | "review" | "handoff"; name: string; state: string }[];
}

interface SharedSession {
  title: string | null;
  shared_at: string;
  turns: SharedTurn[];
}

const root = new URL("..", import.meta.url);
const token = location.pathname.split("/").filter(Boolean).at(-1) ?? "";

async function load(): Promise<SharedSession | string> {
  try {
    const response = await fetch(new URL(`v1/shared/${token}`, root), { credentials: "omit" });
    if (response.ok) return (await response.json()) as SharedSession;
    return response.status === 404
      ? "This link was revoked, or never existed. Ask its sender for a new one."
      : `The server answered ${response.status}. Try again later.`;
  } catch {
    return "Server unreachable. Reload to try again.";
  }
}

function Share() {
  const [session, setSession] = useState<SharedSession | string | null>(null);
  useEffect(() => void load().then(setSession), []);
  const title = typeof session === "object" ? session?.title : null;
  useEffect(() => {
    if (title) document.title = title;
  }, [title]);
  if (session === null) return <Skeleton />;
  if (typeof session === "string")
    return (
      <main class="shared">
        <p role="alert" class="failure" data-testid="problem">
          {session}
        </p>
      </main>
    );
  const date = new Date(session.shared_at).toLocaleDateString(undefined, { dateStyle: "long" });
  return (
    <main class="shared">
      <h1 data-testid="title">{session.title ?? "A conversation"}</h1>
      <p class="faint small">Shared on {date}, read-only.</p>
      {session.turns.map((turn, index) => (
        <Turn key={index} turn={turn} />
      ))}
    </main>
  );
}

function Answer({ text }: { text: string }) {
  const container = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => new AnswerView(container.current!).show(text, false, true), []);
  return <div class="prose" data-testid="answer" ref={container} />;
}

function Turn({ turn }: { turn: SharedTurn }) {
  const source = origin(turn.mode ?? undefined, turn.citations, turn.model ?? undefined);
  const tools = [...new Set(turn.steps.filter((step) => step.kind === "tool").map((step) => step.name))];
  return (
    <section class="turn" data-testid="turn">
      <article class="asked" aria-label="Message">
        <div class="bubble" data-testid="message">
          {turn.message}
        </div>
      </article>
      <article class="answer" aria-label={`Answer of ${turn.agent}`}>
        {tools.length > 0 && <p class="faint small">Used {tools.join(", ")}</p>}
        {[...turn.inputs, null].map((input, index) => (
          <Fragment key={index}>
            <Answer text={sliceText(turn.content, turn.inputs[index - 1]?.answer_offset ?? 0, input?.answer_offset)} />
            {input && (
              <div class="asked">
                <div class="bubble" data-testid="input">
                  {input.content}
                </div>
              </div>
            )}
          </Fragment>
        ))}
        {turn.outcome !== "completed" && <p class="note">{ENDS[turn.outcome ?? turn.phase]}</p>}
        <Sources citations={turn.citations} />
        {turn.content && source && (
          <p class="faint small" data-testid="provenance">
            {source}
          </p>
        )}
      </article>
    </section>
  );
}

const ENDS = {
  queued: "This answer has not begun.",
  running: "This answer is being written. Reload to see more.",
  waiting: "This answer waits for a decision.",
  ended: "",
  failed: "This answer failed.",
  cancelled: "This answer was stopped.",
  interrupted: "This answer was interrupted.",
} as const;

function Sources({ citations }: { citations: SharedCitation[] }) {
  const first = new Map<number, SharedCitation>();
  for (const citation of citations) if (!first.has(citation.index)) first.set(citation.index, citation);
  if (!first.size) return null;
  return (
    <ul class="shared-sources" aria-label="Sources" data-testid="sources">
      {[...first.values()].map(({ index, title, heading, page_number, supporting_quote }) => (
        <li key={index}>
          <details>
            <summary>
              [{index}] {[title, headingIn({ heading, title }), page_number && `page ${page_number}`].filter(Boolean).join(" · ")}
            </summary>
            {supporting_quote && <blockquote>{supporting_quote}</blockquote>}
          </details>
        </li>
      ))}
    </ul>
  );
}

render(<Share />, document.getElementById("root")!);
