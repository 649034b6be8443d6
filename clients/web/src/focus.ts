/** A `ref` that focuses a new element, and selects the text of an input. */
export function focusFirst(element: HTMLElement | null): void {
  element?.focus();
  if (element instanceof HTMLInputElement) element.select();
}
