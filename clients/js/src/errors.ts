/** The error class of this client. The reason of an AbortSignal is thrown unchanged. */

export class TurnwireError extends Error {
  /** The HTTP status; 0 without a response. */
  readonly status: number;
  /** A code of the server, or `network`, `not_turnwire`, `broken_stream` or `closed`. */
  readonly code: string;
  /** True if a later attempt may succeed. Safe requests have been retried before this was thrown. */
  readonly retryable: boolean;
  /** Milliseconds to wait, from the Retry-After header. */
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

/** Returns true for statuses that may go away: no response, 5xx, and the 4xx that mean "later". */
export function isRetryable(status: number): boolean {
  return status === 0 || status >= 500 || status === 408 || status === 425 || status === 429;
}
