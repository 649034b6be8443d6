/** Uploads of documents. */

import { Icon, IconButton } from "../icons.tsx";
import { Observable, useObservable } from "../observable.ts";
import { client, newId, errorText } from "../server.ts";

interface Upload {
  key: string;
  name: string;
  fraction: number;
  state: "sending" | "reading" | "done" | "failed";
  problem?: string;
}

export class Uploads extends Observable {
  list: Upload[] = [];
  /** The number of finished uploads. */
  arrived = 0;

  add(files: File[]): void {
    for (const file of files) void this.#send(file);
  }

  /** Removes an upload, or all finished ones. */
  forget(key?: string): void {
    this.list = this.list.filter((upload) => (key ? upload.key !== key : upload.state !== "done"));
    this.changed();
  }

  async #send(file: File): Promise<void> {
    const key = newId();
    this.list = [...this.list, { key, name: file.name, fraction: 0, state: "sending" }];
    this.changed();
    try {
      await client.documents.upload(file, (fraction) =>
        this.#put(key, { fraction, state: fraction < 1 ? "sending" : "reading" }),
      );
      this.arrived++;
      this.#put(key, { fraction: 1, state: "done" });
    } catch (error) {
      this.#put(key, { state: "failed", problem: errorText(error) });
    }
  }

  #put(key: string, change: Partial<Upload>): void {
    this.list = this.list.map((upload) => (upload.key === key ? { ...upload, ...change } : upload));
    this.changed();
  }
}

const STATE_TEXT = {
  sending: "Uploading",
  reading: "Indexing",
  done: "Ready",
  failed: "Failed",
} as const;

export function UploadList({ uploads }: { uploads: Uploads }) {
  const { list } = useObservable(uploads);
  if (!list.length) return null;
  return (
    <ul class="uploads" aria-label="Documents being added">
      {list.map(({ key, name, fraction, state, problem }) => (
        <li key={key} class={state} data-testid="uploading" data-state={state}>
          <Icon name={state === "done" ? "review" : "book"} />
          <span class="upload-name">{name}</span>
          <span class="faint" role={problem ? "alert" : undefined}>
            {problem ?? STATE_TEXT[state]}
          </span>
          {(state === "sending" || state === "reading") && (
            <progress
              max={1}
              value={state === "sending" ? fraction : undefined}
              aria-label={`${STATE_TEXT[state]}: ${name}`}
            />
          )}
          {(state === "done" || state === "failed") && (
            <IconButton name="close" label={`Hide ${name}`} onClick={() => uploads.forget(key)} />
          )}
        </li>
      ))}
    </ul>
  );
}
