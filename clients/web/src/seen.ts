/**
 * Whether anybody looks at this tab.
 *
 * A browser opens at most six connections to one server, so a tab that nobody sees must not keep one for long.
 */

const HIDDEN_MS = 5_000;

export const isHidden = (): boolean => document.visibilityState === "hidden";

/** Calls `leave` when the tab has been hidden for a while, and `back` when it is looked at again; returns how to stop. */
export function whileSeen(leave: () => void, back: () => void): () => void {
  let leaving: ReturnType<typeof setTimeout> | undefined;
  const turned = () => {
    clearTimeout(leaving);
    if (isHidden()) leaving = setTimeout(leave, HIDDEN_MS);
    else back();
  };
  document.addEventListener("visibilitychange", turned);
  if (isHidden()) turned();
  return () => {
    clearTimeout(leaving);
    document.removeEventListener("visibilitychange", turned);
  };
}
