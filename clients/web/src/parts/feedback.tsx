/** The rating of an answer: thumbs up or down, with a note. Absent on servers that keep none. */

import { useEffect, useState } from "preact/hooks";
import type { Feedback } from "../entries.ts";
import { focusFirst } from "../focus.ts";
import { IconButton } from "../icons.tsx";
import { client, errorText, fetchFeatures, hideFeature, isStatus } from "../server.ts";

export function FeedbackButtons({ turnId, given }: { turnId: string; given: Feedback | null }) {
  const [isOffered, setOffered] = useState(false);
  const [feedback, setFeedback] = useState<Feedback | null>(given);
  const [note, setNote] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => void fetchFeatures().then(({ feedback: isKept }) => setOffered(isKept)), []);
  if (!isOffered) return null;
  const save = async (next: Feedback | null) => {
    setFeedback(next);
    setNote(next && note === null ? (next.note ?? "") : null);
    setProblem(null);
    try {
      const body = { value: next?.value ?? null, ...(next?.note ? { note: next.note } : {}) };
      await client.request("PUT", `/v1/turns/${encodeURIComponent(turnId)}/feedback`, body);
    } catch (error) {
      setFeedback(feedback);
      if (isStatus(error, 404)) (hideFeature("feedback"), setOffered(false));
      else setProblem(errorText(error));
    }
  };
  const rate = (value: Feedback["value"]) => void save(feedback?.value === value ? null : { value });
  const button = (value: Feedback["value"], label: string) => (
    <IconButton
      name={value === "up" ? "good" : "bad"}
      label={label}
      testid={`feedback-${value}`}
      aria-pressed={feedback?.value === value}
      onClick={() => rate(value)}
    />
  );
  return (
    <span class="tools feedback" role="group" aria-label="Rate this answer">
      {button("up", "Good answer")}
      {button("down", "Bad answer")}
      {feedback && note !== null && (
        <form
          class="note-form"
          onSubmit={(event) => (event.preventDefault(), void save({ ...feedback, note: note.trim() }))}
        >
          <input
            aria-label="Note about this answer"
            placeholder="Add a note (optional)"
            data-testid="feedback-note"
            maxLength={2000}
            ref={focusFirst}
            value={note}
            onInput={(event) => setNote(event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Escape" && (event.stopPropagation(), setNote(null))}
          />
          <button type="submit" class="quiet">
            Save
          </button>
        </form>
      )}
      {problem && (
        <span role="alert" class="problem">
          {problem}
        </span>
      )}
    </span>
  );
}
