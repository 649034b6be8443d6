/** Everything that turns Markdown into elements: one bundle, loaded with the first text to show. */

export { AnswerView, markdownFragment } from "./answer.ts";
export { citationOrder, renumbered } from "./markdown.ts";
export { documentFragment } from "./passages.ts";
