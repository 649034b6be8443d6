import { splitStreamedText } from "@turnwire/client";

const answer = await fetch("http://127.0.0.1:8420/v1/rag/sessions/my-chat/messages/stream", {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({ prompt: "Hello" }),
});
for await (const piece of splitStreamedText(answer.body)) {
  if (piece.kind === "event") console.log(piece.event.type);
  if (piece.kind === "text") process.stdout.write(piece.text);
  if (piece.kind === "trailer") console.log("\n", piece.trailer.outcome, piece.trailer.citations);
}
