/** The document that a chip stands on, opened at the passage. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { DocumentText } from "../../../js/src/index.ts";
import { IconButton } from "../icons.tsx";
import { client, isStatus, told } from "../server.ts";
import { markdownFragment } from "../text/answer.ts";
import { documentFragment } from "../text/passages.ts";
import type { Source } from "./sources.tsx";

export function SourcePanel({ source, onClose }: { source: Source; onClose: () => void }) {
  const [found, setFound] = useState<DocumentText | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const paper = useRef<HTMLDivElement>(null);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), [source]);
  useEffect(() => {
    let isWanted = true;
    setFound((now) => (now?.id === source.document_id ? now : null));
    setProblem(null);
    client.documents.get(source.document_id).then(
      (document) => isWanted && setFound(document),
      (error: unknown) =>
        isWanted && setProblem(isStatus(error, 404) ? "This document is no longer there." : told(error)),
    );
    return () => void (isWanted = false);
  }, [source.document_id]);
  useLayoutEffect(() => {
    if (!paper.current) return;
    // What is not one of the server's documents, such as a page of the web: its words, and where it is.
    if (problem) paper.current.replaceChildren(markdownFragment(elsewhere(source)));
    if (!found?.text) return;
    const isMarkdown = found.format === "markdown" || /\.(md|markdown|mdx)$/i.test(found.name);
    paper.current.replaceChildren(documentFragment(found.text, isMarkdown, ...placeOf(source, found.text)));
    const mark = paper.current.querySelector("mark");
    if (mark) mark.scrollIntoView({ block: "center" });
    else paper.current.parentElement!.scrollTop = 0;
  }, [found, source, problem]);
  return (
    <section class="panel-inner" aria-labelledby="source-title" data-testid="source">
      <header class="panel-head">
        <div>
          <h2 id="source-title" tabIndex={-1} ref={heading}>
            {found?.title ?? source.title ?? "Document"}
          </h2>
          <div class="faint small">
            {found ? `${found.name}${source.page_number ? ` · page ${source.page_number}` : ""}` : ""}
          </div>
        </div>
        <IconButton name="close" label="Close the document" testid="source-close" onClick={onClose} />
      </header>
      <div class="panel-body" tabIndex={0} role="group" aria-label="The document's text">
        {problem && !source.url && (
          <p role="alert" class="problem">
            {problem}
          </p>
        )}
        {!found && !problem && <div class="skeleton" aria-label="Loading" />}
        <div class="prose document" ref={paper} />
      </div>
    </section>
  );
}

const elsewhere = ({ supporting_quote: quote = "", url }: Source): string =>
  `${quote.replace(/^/gm, "> ")}\n\n${url ? `<${url}>` : ""}`;

/** Where the passage is: told by a citation, or looked for if only its words are known. */
function placeOf(
  { source_start: start, source_end: end, supporting_quote: quote }: Source,
  text: string,
): [start?: number, end?: number] {
  if (start !== undefined) return [start, end];
  const at = quote ? text.indexOf(quote) : -1;
  if (at < 0) return [];
  const first = [...text.slice(0, at)].length;
  return [first, first + [...quote!].length];
}
