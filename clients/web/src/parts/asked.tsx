/** A question of the agent: a form while it is open, then one line with the answer. */

import type { QuestionView } from "../../../js/src/index.ts";
import { fieldsOf } from "../form.ts";
import { Icon } from "../icons.tsx";
import { client } from "../server.ts";
import { ValueForm } from "./form.tsx";

interface AskedProps {
  turnId: string;
  question: QuestionView;
  mayAnswer: boolean;
}

export function AskedQuestion({ turnId, question, mayAnswer }: AskedProps) {
  if (question.state !== "open") {
    return (
      <p class="note" data-testid="asked">
        {question.prompt} <span class="faint">{question.state === "answered" ? shown(question.value) : "Not answered."}</span>
      </p>
    );
  }
  return (
    <section class="approval" data-testid="question" aria-label="The agent asks">
      <h3>
        <Icon name="hand" /> {question.prompt}
      </h3>
      {mayAnswer ? (
        <ValueForm
          testId="reply"
          fields={fieldsOf(question.schema)}
          submit={["Answer", "Sending…"]}
          onSubmit={async (value) => void (await client.reply(turnId, question.id, { value }))}
          other={["Decline", async () => void (await client.reply(turnId, question.id, { declined: true }))]}
        />
      ) : (
        <p class="faint">Your key cannot answer questions. Ask someone whose key can.</p>
      )}
    </section>
  );
}

/** Returns an answer for a person to read: a form is a list of its fields. */
function shown(value: unknown): string {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "object" || value === null) return String(value);
  if (Array.isArray(value)) return value.map(shown).join(", ");
  return Object.entries(value).map(([name, field]) => `${name}: ${shown(field)}`).join(", ");
}
