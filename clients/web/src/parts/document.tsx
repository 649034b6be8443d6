/** A panel with the document of a source, scrolled to the passage. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { DocumentText } from "../../../js/src/index.ts";
import { IconButton } from "../icons.tsx";
import { client, isStatus, errorText } from "../server.ts";
import { useRenderer } from "../text/load.ts";
import { Skeleton } from "./skeleton.tsx";
import type { Source } from "./sources.tsx";

export function SourcePanel({ source, onClose }: { source: Source; onClose: () => void }) {
  const [content, setContent] = useState<DocumentText | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const body = useRef<HTMLDivElement>(null);
  const renderer = useRenderer();
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), [source]);
  useEffect(() => {
    let isCurrent = true;
    setContent((now) => (now?.id === source.document_id ? now : null));
    setProblem(null);
    client.documents.get(source.document_id).then(
      (document) => isCurrent && setContent(document),
      (error: unknown) =>
        isCurrent && setProblem(isStatus(error, 404) ? "This document no longer exists." : errorText(error)),
    );
    return () => void (isCurrent = false);
  }, [source.document_id]);
  useLayoutEffect(() => {
    if (!body.current || !renderer) return;
    // A source outside of the server, such as a web page: the quote and the address.
    if (problem) body.current.replaceChildren(renderer.markdownFragment(quoteMarkdown(source)));
    if (!content?.text) return;
    const isMarkdown = content.format === "markdown" || /\.(md|markdown|mdx)$/i.test(content.name);
    body.current.replaceChildren(renderer.documentFragment(content.text, isMarkdown, ...passageOf(source, content.text)));
    const mark = body.current.querySelector("mark");
    if (mark) mark.scrollIntoView({ block: "center" });
    else body.current.parentElement!.scrollTop = 0;
  }, [content, source, problem, renderer]);
  return (
    <section class="panel-inner" aria-labelledby="source-title" data-testid="source">
      <header class="panel-head">
        <div>
          <h2 id="source-title" tabIndex={-1} ref={heading}>
            {content?.title ?? source.title ?? "Document"}
          </h2>
          <div class="faint small">
            {content ? `${content.name}${source.page_number ? ` · page ${source.page_number}` : ""}` : ""}
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
        {!content && !problem && <Skeleton />}
        <div class="prose document" ref={body} />
      </div>
    </section>
  );
}

const quoteMarkdown = ({ supporting_quote: quote = "", url }: Source): string =>
  `${quote.replace(/^/gm, "> ")}\n\n${url ? `<${url}>` : ""}`;

/** Returns the offsets of the passage: from the citation, or by searching for the quote. */
function passageOf(
  { source_start: start, source_end: end, supporting_quote: quote }: Source,
  text: string,
): [start?: number, end?: number] {
  if (start !== undefined) return [start, end];
  const at = quote ? text.indexOf(quote) : -1;
  if (at < 0) return [];
  const first = [...text.slice(0, at)].length;
  return [first, first + [...quote!].length];
}
