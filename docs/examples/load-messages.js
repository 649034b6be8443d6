/** Returns the messages of a chat that the server has: a question and, if it has ended, an answer for each turn. */
export async function loadMessages(server, id) {
  const response = await fetch(`${server}/v1/sessions/${encodeURIComponent(id)}/export`);
  if (response.status === 404) return []; // The chat is new.
  if (!response.ok) throw new Error(`The server answered ${response.status}`);
  const { turns } = await response.json();
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]));
  const shown = []; // The newest branch, from its start: an answer that was regenerated is left out.
  for (let turn = turns.at(-1); turn; turn = byId.get(turn.parent_turn_id)) shown.unshift(turn);
  const text = (id, role, content) => ({ id, role, parts: [{ type: "text", text: content }] });
  return shown.flatMap(({ turn_id, message, phase, state }) => [
    text(`${turn_id}-question`, "user", message),
    ...(phase === "ended" ? [text(turn_id, "assistant", state.text)] : []), // `resume` brings a running answer.
  ]);
}
