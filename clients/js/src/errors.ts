/** The one error that this client throws on purpose. An AbortSignal's own reason is thrown as it is. */

export class TurnwireError extends Error {
  /** The HTTP status; 0 if there was no answer. */
  readonly status: number;
  /** As in the server's list of errors; `network`, `not_turnwire`, `broken_stream` and `closed` are this client's. */
  readonly code: string;
  /** Whether the same thing may go well later. What is safe to try again has been, before this was thrown. */
  readonly retryable: boolean;
  /** Milliseconds the server asks to wait, if it said. */
  readonly retryAfter: number | undefined;

  constructor(
    status: number,
    code: string,
    message: string,
    more: { retryable?: boolean; retryAfter?: number | undefined; cause?: unknown } = {},
  ) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause });
    this.name = "TurnwireError";
    this.status = status;
    this.code = code;
    this.retryable = more.retryable ?? isRetryable(status);
    this.retryAfter = more.retryAfter;
  }
}

/** A 4xx is final, but for those that say "later"; everything that is nobody's fault is not. */
export function isRetryable(status: number): boolean {
  return status === 0 || status >= 500 || status === 408 || status === 425 || status === 429;
}
