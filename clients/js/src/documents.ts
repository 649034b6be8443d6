/** Documents of the server. */

import type { DocumentPage, DocumentText, TurnwireDocument } from "./api_types.js";
import { TurnwireError } from "./errors.js";
import { failureOf, type Http, queryOf, refusalOf } from "./http.js";

export interface UploadOptions {
  /** The name of a Blob, which has none. */
  name?: string;
  signal?: AbortSignal;
}

export class Documents {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Lists the documents that you may read, by name. */
  list(options: { search?: string; after?: string; limit?: number } = {}): Promise<DocumentPage> {
    return this.#http.json({ path: `/v1/documents${queryOf(options)}` });
  }

  /** Returns the whole text; with both offsets of a citation, the passage with its surroundings. */
  get(id: string, passage: { start?: number; end?: number } = {}): Promise<DocumentText> {
    return this.#http.json({ path: documentPath(id) + queryOf(passage) });
  }

  /**
   * Uploads a document, which only you can read. `onProgress` is called with fractions from 0 to 1 in browsers. There
   * is no retry, so that a failed upload is reported at once.
   */
  upload(
    file: Blob & { name?: string },
    onProgress?: (fraction: number) => void,
    options: UploadOptions = {},
  ): Promise<TurnwireDocument> {
    const form = new FormData();
    form.append("file", file, options.name ?? file.name ?? "document.txt");
    if (onProgress && typeof XMLHttpRequest === "function") return this.#send(form, onProgress, options.signal);
    const request = { method: "POST", path: "/v1/documents", body: form, signal: options.signal };
    return this.#http.json({ ...request, attempts: 1, isLong: true });
  }

  /** Deletes a document that you uploaded. */
  delete(id: string): Promise<void> {
    return this.#http.remove(documentPath(id));
  }

  /** Uploads with XMLHttpRequest, because fetch reports no upload progress. */
  #send(form: FormData, onProgress: (fraction: number) => void, signal?: AbortSignal): Promise<TurnwireDocument> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const request = new XMLHttpRequest();
      const abort = (): void => request.abort();
      signal?.addEventListener("abort", abort);
      request.open("POST", `${this.#http.url}/v1/documents`);
      request.withCredentials = this.#http.credentials === "include";
      for (const [name, value] of Object.entries(this.#http.headers())) request.setRequestHeader(name, value);
      request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
      request.onabort = () => reject(signal?.reason);
      request.onerror = () => reject(new TurnwireError(0, "network", "the server cannot be reached"));
      request.onload = () => {
        if (request.status >= 300) return reject(refusalOf(request.status, request.responseText));
        try {
          resolve(JSON.parse(request.responseText) as TurnwireDocument);
        } catch (error) {
          reject(failureOf(error));
        }
      };
      request.onloadend = () => signal?.removeEventListener("abort", abort);
      request.send(form);
    });
  }
}

function documentPath(id: string): string {
  return `/v1/documents/${encodeURIComponent(id)}`;
}
