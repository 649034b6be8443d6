/** The clipboard, also on pages that browsers do not trust with the new way. */

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

/** The copy buttons in code blocks, which are not drawn but made of Markdown. */
export async function copyCode(button: HTMLElement): Promise<void> {
  const code = button.closest(".code")?.querySelector("pre")?.textContent ?? "";
  if (!(await copyText(code))) return;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
