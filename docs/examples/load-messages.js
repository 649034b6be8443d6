/** Returns the messages of a chat that the server has. With `resume`, the stream brings the answer that still runs. */
export async function loadMessages(server, id) {
  const response = await fetch(`${server}/api/chat/${encodeURIComponent(id)}/messages`);
  if (response.status === 404) return []; // The chat is new.
  if (!response.ok) throw new Error(`The server answered ${response.status}`);
  return (await response.json()).messages;
}
