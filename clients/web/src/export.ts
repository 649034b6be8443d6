/** Files of a conversation: Markdown of what is shown, and the server's JSON of everything. */

import type { Entry } from "./entries.ts";
import { provenance } from "./format.ts";
import { client } from "./server.ts";
import { loadRenderer, type Renderer } from "./text/load.ts";

export async function exportMarkdown(title: string, path: readonly Entry[]): Promise<void> {
  download(`${fileName(title)}.md`, "text/markdown", markdownOf(title, path, await loadRenderer()));
}

export async function exportJson(title: string, sessionId: string): Promise<void> {
  const content = await client.sessions.export(sessionId);
  download(`${fileName(title)}.json`, "application/json", `${JSON.stringify(content, null, 2)}\n`);
}

/** Returns the visible turns: question, answer, sources, and where the answer comes from. */
function markdownOf(title: string, path: readonly Entry[], renderer: Renderer): string {
  return [`# ${title}`, ...path.map((entry) => turnMarkdown(entry, renderer))].join("\n\n") + "\n";
}

function turnMarkdown({ message, view }: Entry, { citationOrder, renumbered }: Renderer): string {
  const parts = [message.replace(/^/gm, "> ")];
  const numbers = citationOrder(view.text);
  if (view.text) parts.push(view.citations.length ? renumbered(view.text) : view.text);
  const titles = new Map(
    view.citations.map(({ index, title, document_id, heading }) => [
      numbers.get(index) ?? index,
      [title ?? document_id, heading].filter(Boolean).join(", "),
    ]),
  );
  const sources = [...titles].sort(([one], [other]) => one - other).map(([number, text]) => `- [${number}] ${text}`);
  if (sources.length) parts.push(sources.join("\n"));
  const origin = view.outcome === "completed" ? provenance(view) : `This answer is not complete (${view.outcome ?? "running"})`;
  if (origin) parts.push(`*${origin}*`);
  return parts.join("\n\n");
}

const fileName = (title: string): string => title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || "conversation";

function download(name: string, type: string, content: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
