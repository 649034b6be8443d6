/** The pane: one conversation, a status line and a message box. */

import { TurnwireError } from "@turnwire/client";
import { type App, ItemView, MarkdownView, Notice, type WorkspaceLeaf } from "obsidian";

import { openCitation } from "./citations";
import { Conversation } from "./conversation";
import { connect } from "./link";
import type TurnwirePlugin from "./main";
import { movedPath } from "./settings";
import { statusOf } from "./status";
import { TurnElement } from "./turn-element";

export const CHAT_VIEW = "turnwire-chat";
const RETRY_MS = 3_000;
const NEAR_PX = 40;

export class ChatView extends ItemView {
  private conversation: Conversation | undefined;
  private readonly elements = new Map<string, TurnElement>();
  /** The note of the shown conversation; "" for the vault. */
  private notePath: string | undefined;
  /** The number of the last attempt to open a conversation; earlier attempts stop. */
  private openingId = 0;
  private problem = "";
  private stopListening: () => void = () => {};
  private isSending = false;
  private changedTurns = new Set<string | undefined>();
  private turnsEl!: HTMLElement;
  private statusEl!: HTMLElement;
  private noticeEl!: HTMLElement;
  private headingEl!: HTMLElement;
  private inputEl!: HTMLTextAreaElement;
  private sendEl!: HTMLButtonElement;
  private stopEl!: HTMLButtonElement;

  constructor(
    leaf: WorkspaceLeaf,
    private readonly plugin: TurnwirePlugin,
  ) {
    super(leaf);
  }

  override getViewType(): string {
    return CHAT_VIEW;
  }

  override getDisplayText(): string {
    return "Turnwire";
  }

  override getIcon(): string {
    return "message-circle";
  }

  override async onOpen(): Promise<void> {
    this.draw();
    this.registerEvent(this.app.workspace.on("file-open", () => void this.showConversation()));
    // Not awaited: Obsidian waits for `onOpen`, and the server may be unreachable.
    void this.showConversation();
  }

  /** Closes the conversation; its turn continues on the server. */
  override async onClose(): Promise<void> {
    this.openingId++;
    this.leave();
  }

  /** Opens the conversation again with the current settings. */
  async reload(): Promise<void> {
    this.notePath = undefined;
    await this.showConversation();
  }

  /** Keeps the conversation of a note that was moved. */
  noteMoved(from: string, to: string): void {
    if (this.notePath) this.showNote(movedPath(this.notePath, from, to));
  }

  async startConversation(): Promise<void> {
    await this.plugin.forgetSession(this.activeNotePath());
    await this.reload();
    this.inputEl.focus();
  }

  async stop(): Promise<void> {
    await this.attempt(() => this.conversation?.stop());
  }

  private draw(): void {
    const { contentEl } = this;
    contentEl.empty();
    contentEl.addClass("turnwire-view");
    const header = contentEl.createDiv({ cls: "turnwire-header" });
    this.headingEl = header.createDiv({ cls: "turnwire-title" });
    const newEl = header.createEl("button", { text: "New conversation" });
    this.noticeEl = contentEl.createDiv({ cls: "turnwire-notice" });
    this.turnsEl = contentEl.createDiv({ cls: "turnwire-turns", attr: { role: "log", "aria-live": "off", tabindex: "0" } });
    this.statusEl = contentEl.createDiv({ cls: "turnwire-status", attr: { role: "status" } });
    const composer = contentEl.createDiv({ cls: "turnwire-composer" });
    this.inputEl = composer.createEl("textarea", { attr: { rows: "3", placeholder: "Ask your notes", "aria-label": "Message" } });
    const row = composer.createDiv({ cls: "turnwire-row" });
    this.stopEl = row.createEl("button", { text: "Stop", cls: "mod-warning" });
    this.sendEl = row.createEl("button", { text: "Send", cls: "mod-cta" });
    this.registerDomEvent(newEl, "click", () => void this.startConversation());
    this.registerDomEvent(this.stopEl, "click", () => void this.stop());
    this.registerDomEvent(this.sendEl, "click", () => void this.send());
    this.registerDomEvent(this.inputEl, "keydown", (event) => {
      // In an input method, Enter chooses a word.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      void this.send();
    });
    this.refresh();
  }

  private activeNotePath(): string {
    const note = this.plugin.settings.scope === "note" ? this.app.workspace.getActiveFile() : null;
    return note?.path ?? "";
  }

  private async showConversation(): Promise<void> {
    const notePath = this.activeNotePath();
    if (notePath === this.notePath) return;
    this.leave();
    this.showNote(notePath);
    await this.openConversation(notePath, ++this.openingId);
  }

  private showNote(notePath: string): void {
    this.notePath = notePath;
    this.headingEl.setText(notePath ? notePath.slice(notePath.lastIndexOf("/") + 1).replace(/\.md$/, "") : "This vault");
  }

  /** Retries until it succeeds, fails for good, or another conversation is opened. */
  private async openConversation(notePath: string, openingId: number): Promise<void> {
    this.problem = "Connecting…";
    while (openingId === this.openingId) {
      this.refresh();
      try {
        const { link } = await connect(this.plugin.linkOptions());
        if (openingId !== this.openingId) return;
        this.noticeEl.setText(link.mode === "polling" ? POLLING_NOTICE : "");
        const conversation: Conversation = new Conversation(link, this.plugin.sessionOf(notePath), {
          changed: (turnId) => conversation === this.conversation && this.changed(turnId),
          failed: (error) => conversation === this.conversation && this.fail(error),
        });
        this.conversation = conversation;
        this.stopListening = link.client.onConnection((state) => {
          this.problem = state === "online" ? "" : "Connection lost. Retrying…";
          this.refresh();
        });
        await conversation.open();
        if (openingId !== this.openingId) return;
        this.problem = "";
        this.refresh();
        return;
      } catch (error) {
        if (openingId !== this.openingId) return;
        this.leave();
        this.fail(error);
        if (!(error instanceof TurnwireError) || !error.retryable) return;
        await new Promise((resolve) => window.setTimeout(resolve, RETRY_MS));
      }
    }
  }

  private leave(): void {
    this.stopListening();
    this.conversation?.close();
    this.conversation = undefined;
    this.clear();
  }

  private clear(): void {
    for (const element of this.elements.values()) this.removeChild(element);
    this.elements.clear();
    this.changedTurns.clear();
  }

  private async send(): Promise<void> {
    const { conversation } = this;
    const text = this.inputEl.value.trim();
    if (!text || !conversation || this.isSending) return;
    const isFirst = conversation.turns.length === 0;
    const mentionsNote = isFirst && this.notePath && this.plugin.settings.mentionNote;
    this.isSending = true;
    this.problem = "";
    this.inputEl.value = "";
    this.refresh();
    try {
      await this.plugin.keepSession(this.notePath ?? "", conversation.sessionId);
      await conversation.send(mentionsNote ? `About the note “${this.notePath}”: ${text}` : text, this.plugin.settings.agent);
    } catch (error) {
      // Restore the text that was not sent.
      if (!this.inputEl.value) this.inputEl.value = text;
      this.fail(error);
    } finally {
      this.isSending = false;
      this.refresh();
    }
  }

  /** Schedules a redraw: changes are drawn once per frame. */
  private changed(turnId: string | undefined): void {
    if (!this.changedTurns.size) window.requestAnimationFrame(() => this.drawChanged());
    this.changedTurns.add(turnId);
  }

  private drawChanged(): void {
    const { conversation } = this;
    const changed = [...this.changedTurns];
    this.changedTurns.clear();
    if (!conversation) return;
    const { scrollHeight, scrollTop, clientHeight } = this.turnsEl;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    if (changed.includes(undefined)) this.clear();
    const turns = changed.includes(undefined) ? conversation.turns : changed.map((id) => conversation.turn(id ?? ""));
    for (const turn of turns) {
      if (turn) this.elementOf(turn.turnId, conversation).update(turn);
    }
    this.refresh();
    if (isAtEnd) this.turnsEl.scrollTop = this.turnsEl.scrollHeight;
  }

  private elementOf(turnId: string, conversation: Conversation): TurnElement {
    const existing = this.elements.get(turnId);
    if (existing) return existing;
    const element = this.addChild(
      new TurnElement(this.turnsEl, this.app, {
        sourcePath: () => this.notePath ?? "",
        open: (citation) => void this.attempt(() => openCitation(this.app, citation)),
        decide: (callId, decision) => conversation.decide(turnId, callId, decision),
        copy: (text) => void this.attempt(() => navigator.clipboard.writeText(text)),
        insert: (text) => insertText(this.app, text),
      }),
    );
    this.elements.set(turnId, element);
    return element;
  }

  private refresh(): void {
    const running = this.conversation?.running;
    const status = this.problem || (this.isSending ? "Sending…" : running ? statusOf(running) : "");
    // Only if it differs: screen readers announce every change.
    if (this.statusEl.textContent !== status) this.statusEl.setText(status);
    this.stopEl.toggle(running !== undefined);
    this.sendEl.disabled = this.conversation === undefined || this.isSending;
  }

  private fail(error: unknown): void {
    this.problem = error instanceof Error ? sentence(error.message) : String(error);
    this.refresh();
  }

  private async attempt(act: () => Promise<void> | undefined): Promise<void> {
    try {
      await act();
    } catch (error) {
      new Notice(error instanceof Error ? sentence(error.message) : String(error));
    }
  }
}

const POLLING_NOTICE =
  "Obsidian cannot stream from this server, so answers come in larger pieces. Start the server with --vault, or with " +
  "TURNWIRE_DOCUMENTS_ALLOW_OBSIDIAN=true; a phone may also need HTTPS.";

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Inserts text at the cursor of the last used note. */
function insertText(app: App, text: string): void {
  const view = app.workspace.getMostRecentLeaf()?.view;
  if (view instanceof MarkdownView) view.editor.replaceSelection(text);
  else new Notice("Open the note for the answer first.");
}
