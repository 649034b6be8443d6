/** The files of a message: those that wait to be sent, and those of a question. */

import type { AttachedFile, Attachment } from "../../../js/src/index.ts";
import { isShown, type PendingFile } from "../attachments.ts";
import { Icon, IconButton } from "../icons.tsx";
import { client } from "../server.ts";

export function PendingFiles({ files, onRemove }: { files: PendingFile[]; onRemove: (key: string) => void }) {
  if (!files.length) return null;
  return (
    <ul class="attachments" aria-label="Files of this message">
      {files.map(({ key, file }) => (
        <li key={key} data-testid="pending-file">
          <Thumbnail name={file.name} type={file.media_type} address={dataUrl(file)} />
          <IconButton name="close" label={`Remove ${file.name ?? "file"}`} onClick={() => onRemove(key)} />
        </li>
      ))}
    </ul>
  );
}

/** The files of a question: from the log, or as they were sent until the log has them. */
export function AttachedFiles({ files, sessionId }: { files: (AttachedFile & Attachment)[]; sessionId: string | null }) {
  if (!files.length) return null;
  return (
    <ul class="attachments" aria-label="Files">
      {files.map((file, index) => {
        const stored = sessionId && file.digest ? client.sessions.fileAddress(sessionId, file.digest) : undefined;
        return (
          <li key={index} data-testid="attached-file">
            <Thumbnail
              name={file.name}
              type={file.media_type}
              address={stored ?? file.url ?? dataUrl(file)}
              isRemote={!!file.url}
              isLink
            />
          </li>
        );
      })}
    </ul>
  );
}

interface ThumbnailProps {
  name: string | undefined;
  type: string | undefined;
  address: string | undefined;
  isLink?: boolean;
  /** A remote image is not loaded: that would tell its server who reads this page. */
  isRemote?: boolean;
}

function Thumbnail({ name, type, address, isLink, isRemote }: ThumbnailProps) {
  const label = name ?? type ?? "file";
  const content =
    isShown(type) && address && !isRemote ? (
      <img src={address} alt={label} loading="lazy" />
    ) : (
      <span class="attached-name">
        <Icon name="clip" /> {label}
      </span>
    );
  if (!isLink || !address || address.startsWith("data:")) return content;
  return (
    <a href={address} target="_blank" rel="noreferrer">
      {content}
    </a>
  );
}

const dataUrl = ({ data, media_type }: Attachment): string | undefined =>
  data === undefined ? undefined : data.startsWith("data:") ? data : `data:${media_type};base64,${data}`;
