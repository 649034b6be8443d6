/** Highlighting and maths of finished blocks. Their code is loaded on first use; without it the text stays plain. */

/** Longer code stays plain, because colouring it would block the page. */
const LONG_CODE = 60_000;

export function enhance(root: ParentNode): void {
  for (const pre of root.querySelectorAll<HTMLElement>("pre[data-lang]")) {
    const code = pre.querySelector("code");
    const language = (pre.dataset.lang ?? "").toLowerCase();
    delete pre.dataset.lang;
    if (!code || !language || (code.textContent ?? "").length > LONG_CODE) continue;
    // A marked passage of a document stays marked.
    void import("./highlight.js").then(({ highlight }) => code.querySelector("mark") ?? highlight(code, language), ignore);
  }
  for (const formula of root.querySelectorAll<HTMLElement>("[data-maths]")) {
    const isBlock = formula.dataset.maths === "block";
    formula.removeAttribute("data-maths");
    void import("./maths.js").then(({ renderMaths }) => formula.querySelector("mark") ?? renderMaths(formula, isBlock), ignore);
  }
}

/** A server that is away sends no code; the text is readable without it. */
const ignore = (): void => {};
