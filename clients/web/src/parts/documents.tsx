/** A panel to search, add and delete documents. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { DocumentPage } from "../../../js/src/index.ts";
import { focusFirst } from "../focus.ts";
import { Icon, IconButton } from "../icons.tsx";
import { useObservable } from "../observable.ts";
import { client, errorText } from "../server.ts";
import { bytes } from "../format.ts";
import type { Source } from "./sources.tsx";
import { UploadList, type Uploads } from "./uploads.tsx";

interface DocumentsProps {
  uploads: Uploads;
  onOpen: (source: Source) => void;
  onClose: () => void;
}

export function DocumentsPanel({ uploads, onOpen, onClose }: DocumentsProps) {
  const { arrived } = useObservable(uploads);
  const [search, setSearch] = useState("");
  const [page, setPage] = useState<DocumentPage | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const request = useRef(0);
  const load = async (after?: string) => {
    const number = ++request.current;
    try {
      const result = await client.documents.list({
        limit: 50,
        ...(search ? { search } : {}),
        ...(after ? { after } : {}),
      });
      if (number !== request.current) return;
      setPage((now) => (after && now ? { ...result, documents: [...now.documents, ...result.documents] } : result));
      setProblem(null);
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  useEffect(() => {
    const timer = setTimeout(load, search ? 200 : 0);
    return () => clearTimeout(timer);
  }, [search, arrived]);
  const remove = async (id: string) => {
    try {
      await client.documents.delete(id);
      await load();
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  return (
    <section class="panel-inner" aria-labelledby="documents-title" data-testid="documents">
      <header class="panel-head">
        <h2 id="documents-title" tabIndex={-1} ref={focusFirst}>
          Documents
        </h2>
        <IconButton name="close" label="Close the documents" onClick={onClose} />
      </header>
      <div class="panel-tools">
        <input
          type="search"
          aria-label="Search documents"
          placeholder="Search names and titles"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
        <label class="secondary file">
          <Icon name="plus" /> Add
          <input
            type="file"
            multiple
            class="unseen"
            onChange={(event) => {
              uploads.add([...(event.currentTarget.files ?? [])]);
              event.currentTarget.value = "";
            }}
          />
        </label>
      </div>
      <UploadList uploads={uploads} />
      <div class="panel-body">
        {problem && (
          <p role="alert" class="problem">
            {problem}
          </p>
        )}
        {page?.reading.under_way && (
          <p class="faint small">
            Reading {page.reading.done} of {page.reading.total}…
          </p>
        )}
        {page && !page.documents.length && (
          <p class="faint">{search ? "No documents match." : "No documents yet. Add one to ask about it."}</p>
        )}
        <ul class="document-list">
          {page?.documents.map((document) => (
            <li key={document.id}>
              <button
                type="button"
                class="document-open"
                onClick={() => onOpen({ document_id: document.id, title: document.title })}
              >
                <strong>{document.title || document.name}</strong>
                <span class="faint small">
                  {document.name} · {bytes(document.bytes)}
                  {document.shared ? "" : " · yours"}
                </span>
              </button>
              {!document.shared && (
                <IconButton name="trash" label={`Delete ${document.name}`} onClick={() => remove(document.id)} />
              )}
            </li>
          ))}
        </ul>
        {page?.next && (
          <button type="button" class="quiet" onClick={() => load(page.next!)}>
            More
          </button>
        )}
      </div>
    </section>
  );
}
