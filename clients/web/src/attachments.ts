/** Files for the next message: chosen, pasted or dropped. */

import { type Agent, type Attachment, attachmentOf } from "../../js/src/index.ts";
import { newId } from "./server.ts";

export interface PendingFile {
  key: string;
  file: Attachment;
}

/** Returns true if an agent takes files of this media type. */
export function accepts(agent: Agent | undefined, type: string): boolean {
  const kind = type.split("/")[0];
  return !!agent?.attachment_types?.some((pattern) => ["*/*", type, `${kind}/*`].includes(pattern));
}

export async function pendingFiles(files: File[]): Promise<PendingFile[]> {
  return Promise.all(files.map(async (file) => ({ key: newId(), file: await attachmentOf(file) })));
}

/** The images that a browser shows in place; all others are links. */
const SHOWN = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];
export const isShown = (type: string | undefined): boolean => SHOWN.includes(type ?? "");
