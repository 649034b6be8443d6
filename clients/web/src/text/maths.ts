/** Formulas in LaTeX, shown as MathML; loaded with the first formula. */

import temml from "temml";

/** Renders the LaTeX in an element. What cannot be read stays as it was written. */
export function renderMaths(element: HTMLElement, isBlock: boolean): void {
  const source = element.textContent ?? "";
  try {
    // Not trusted: no links, no pictures, no HTML.
    temml.render(source, element, { displayMode: isBlock, throwOnError: true, trust: false, maxExpand: 200, maxSize: [20, 200] });
  } catch {
    element.textContent = source;
    element.classList.add("unread");
  }
}
