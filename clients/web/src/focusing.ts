/** As a `ref`: focuses what has just appeared because somebody asked for it; a box with its text selected. */
export function focusFirst(element: HTMLElement | null): void {
  element?.focus();
  if (element instanceof HTMLInputElement) element.select();
}
