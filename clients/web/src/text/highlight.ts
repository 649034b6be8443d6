/** Syntax highlighting, loaded with the first code block of a known language. */

import { common, createLowlight } from "lowlight";

interface Node {
  type: string;
  value?: string;
  properties?: { className?: unknown };
  children?: Node[];
}

const lowlight = createLowlight(common);

/** Colours the code in an element. It builds elements from a tree, so no string is parsed as HTML. */
export function highlight(element: Element, language: string): void {
  if (!lowlight.registered(language)) return;
  const tree = lowlight.highlight(language, element.textContent ?? "") as Node;
  element.replaceChildren(...(tree.children ?? []).map(build));
}

function build(node: Node): globalThis.Node {
  if (node.type === "text") return document.createTextNode(node.value ?? "");
  const span = document.createElement("span");
  const names = node.properties?.className;
  if (Array.isArray(names)) span.className = names.join(" ");
  span.append(...(node.children ?? []).map(build));
  return span;
}
