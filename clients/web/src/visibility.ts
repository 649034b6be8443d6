/**
 * The visibility of this tab.
 *
 * A browser opens at most six connections per server, so a hidden tab must not keep one for long.
 */

const HIDDEN_MS = 5_000;

export const isHidden = (): boolean => document.visibilityState === "hidden";

/** Calls `leave` after the tab was hidden for a while, and `back` when it is visible. Returns a function that stops it. */
export function whileVisible(leave: () => void, back: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const onChange = () => {
    clearTimeout(timer);
    if (isHidden()) timer = setTimeout(leave, HIDDEN_MS);
    else back();
  };
  document.addEventListener("visibilitychange", onChange);
  if (isHidden()) onChange();
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onChange);
  };
}
