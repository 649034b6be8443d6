/** Copying to the clipboard, also on pages without `navigator.clipboard`. */

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = document.createElement("textarea");
    box.value = text;
    box.className = "unseen";
    document.body.append(box);
    const focused = document.activeElement as HTMLElement | null;
    box.select();
    const isCopied = document.execCommand("copy");
    box.remove();
    focused?.focus();
    return isCopied;
  }
}

/** Handles the wrap buttons of code blocks. */
export function wrapCode(button: HTMLElement): void {
  const isWrapped = !!button.closest(".code")?.classList.toggle("wrapped");
  button.setAttribute("aria-pressed", `${isWrapped}`);
}

/** Handles the copy buttons of code blocks, which are rendered from Markdown. */
export async function copyCode(button: HTMLElement): Promise<void> {
  const code = button.closest(".code")?.querySelector("pre")?.textContent ?? "";
  if (!(await copyText(code))) return;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
