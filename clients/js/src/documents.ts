/** Documents: what answers come from. */

import type { DocumentPage, DocumentText, TurnwireDocument } from "./answers.js";
import { TurnwireError } from "./errors.js";
import { failureOf, type Http, queryOf, refusalOf } from "./http.js";

export interface UploadOptions {
  /** Of a Blob, which has none. */
  name?: string;
  signal?: AbortSignal;
}

export class Documents {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Those that you may read, by name. */
  list(options: { search?: string; after?: string; limit?: number } = {}): Promise<DocumentPage> {
    return this.#http.json({ path: `/v1/documents${queryOf(options)}` });
  }

  /** The whole text; with both offsets of a citation, the passage and what stands around it. */
  get(id: string, passage: { start?: number; end?: number } = {}): Promise<DocumentText> {
    return this.#http.json({ path: documentPath(id) + queryOf(passage) });
  }

  /**
   * Uploads a document, which is yours alone. `onProgress` hears of fractions from 0 to 1 where the platform can tell
   * (browsers). It is tried once: a file that did not get through is worth telling.
   */
  upload(
    file: Blob & { name?: string },
    onProgress?: (fraction: number) => void,
    options: UploadOptions = {},
  ): Promise<TurnwireDocument> {
    const form = new FormData();
    form.append("file", file, options.name ?? file.name ?? "document.txt");
    if (onProgress && typeof XMLHttpRequest === "function") return this.#send(form, onProgress, options.signal);
    const asked = { method: "POST", path: "/v1/documents", body: form, signal: options.signal };
    return this.#http.json({ ...asked, attempts: 1, isLong: true });
  }

  /** One that you uploaded. */
  delete(id: string): Promise<void> {
    return this.#http.erase(documentPath(id));
  }

  /** By XMLHttpRequest, because fetch does not say how much of a body has gone. */
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
