/** The pane: one conversation, a line about what goes on, and where to write. */

import { TurnwireError } from "@turnwire/client";
import { type App, ItemView, MarkdownView, Notice, type WorkspaceLeaf } from "obsidian";

import { openCitation } from "./citations";
import { Conversation } from "./conversation";
import { connect } from "./link";
import type TurnwirePlugin from "./main";
import { statusOf } from "./status";
import { TurnElement } from "./turn-element";

export const CHAT_VIEW = "turnwire-chat";
const RETRY_MS = 3_000;
const NEAR_PX = 40;

export class ChatView extends ItemView {
  private conversation: Conversation | undefined;
  private readonly elements = new Map<string, TurnElement>();
  /** Which note's conversation is shown; "" is the vault's. */
  private place: string | undefined;
  /** What is under way to open a conversation; a newer one makes an older one stop. */
  private opening = 0;
  private trouble = "";
  private stopListening: () => void = () => {};
  private isSending = false;
  private drawing = new Set<string | undefined>();
  private turnsEl!: HTMLElement;
  private statusEl!: HTMLElement;
  private noticeEl!: HTMLElement;
  private placeEl!: HTMLElement;
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
    this.registerEvent(this.app.workspace.on("file-open", () => void this.showPlace()));
    // Obsidian waits for this before it shows anything at all; a server that is not there must not keep it waiting.
    void this.showPlace();
  }

  /** The turn goes on without us. */
  override async onClose(): Promise<void> {
    this.opening++;
    this.leave();
  }

  /** Begins again with what the settings say now. */
  async reload(): Promise<void> {
    this.place = undefined;
    await this.showPlace();
  }

  async beginAnew(): Promise<void> {
    await this.plugin.forgetSession(this.wantedPlace());
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
    this.placeEl = header.createDiv({ cls: "turnwire-title" });
    const anew = header.createEl("button", { text: "New conversation" });
    this.noticeEl = contentEl.createDiv({ cls: "turnwire-notice" });
    this.turnsEl = contentEl.createDiv({ cls: "turnwire-turns", attr: { role: "log", "aria-live": "off", tabindex: "0" } });
    this.statusEl = contentEl.createDiv({ cls: "turnwire-status", attr: { role: "status" } });
    const composer = contentEl.createDiv({ cls: "turnwire-composer" });
    this.inputEl = composer.createEl("textarea", { attr: { rows: "3", placeholder: "Ask your notes", "aria-label": "Message" } });
    const row = composer.createDiv({ cls: "turnwire-row" });
    this.stopEl = row.createEl("button", { text: "Stop", cls: "mod-warning" });
    this.sendEl = row.createEl("button", { text: "Send", cls: "mod-cta" });
    this.registerDomEvent(anew, "click", () => void this.beginAnew());
    this.registerDomEvent(this.stopEl, "click", () => void this.stop());
    this.registerDomEvent(this.sendEl, "click", () => void this.send());
    this.registerDomEvent(this.inputEl, "keydown", (event) => {
      // While an input method is open, Enter chooses a word.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      void this.send();
    });
    this.refresh();
  }

  private wantedPlace(): string {
    const note = this.plugin.settings.scope === "note" ? this.app.workspace.getActiveFile() : null;
    return note?.path ?? "";
  }

  private async showPlace(): Promise<void> {
    const place = this.wantedPlace();
    if (place === this.place) return;
    this.leave();
    this.place = place;
    this.placeEl.setText(place ? place.slice(place.lastIndexOf("/") + 1).replace(/\.md$/, "") : "This vault");
    await this.openConversation(place, ++this.opening);
  }

  /** Tries until it succeeds, the server says no, or another conversation is wanted. */
  private async openConversation(place: string, opening: number): Promise<void> {
    this.trouble = "Connecting…";
    while (opening === this.opening) {
      this.refresh();
      try {
        const { link } = await connect(this.plugin.linkOptions());
        if (opening !== this.opening) return;
        this.noticeEl.setText(link.mode === "polling" ? POLLING_NOTICE : "");
        const conversation: Conversation = new Conversation(link, this.plugin.sessionOf(place), {
          changed: (turnId) => conversation === this.conversation && this.changed(turnId),
          failed: (error) => conversation === this.conversation && this.fail(error),
        });
        this.conversation = conversation;
        this.stopListening = link.client.onConnection((state) => {
          this.trouble = state === "online" ? "" : "The connection is lost; trying again…";
          this.refresh();
        });
        await conversation.open();
        if (opening !== this.opening) return;
        this.trouble = "";
        this.refresh();
        return;
      } catch (error) {
        if (opening !== this.opening) return;
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
    this.drawing.clear();
  }

  private async send(): Promise<void> {
    const { conversation } = this;
    const text = this.inputEl.value.trim();
    if (!text || !conversation || this.isSending) return;
    const isFirst = conversation.turns.length === 0;
    const names = isFirst && this.place && this.plugin.settings.mentionNote;
    this.isSending = true;
    this.inputEl.value = "";
    this.refresh();
    try {
      await this.plugin.keepSession(this.place ?? "", conversation.sessionId);
      await conversation.send(names ? `About the note “${this.place}”: ${text}` : text, this.plugin.settings.agent);
    } catch (error) {
      // What was not sent must not be lost.
      if (!this.inputEl.value) this.inputEl.value = text;
      this.fail(error);
    } finally {
      this.isSending = false;
      this.refresh();
    }
  }

  /** Events may come in hundreds: what has changed is drawn once a frame. */
  private changed(turnId: string | undefined): void {
    if (!this.drawing.size) window.requestAnimationFrame(() => this.drawChanged());
    this.drawing.add(turnId);
  }

  private drawChanged(): void {
    const { conversation } = this;
    const changed = [...this.drawing];
    this.drawing.clear();
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
    const known = this.elements.get(turnId);
    if (known) return known;
    const made = this.addChild(
      new TurnElement(this.turnsEl, this.app, {
        sourcePath: () => this.place ?? "",
        open: (citation) => void this.attempt(() => openCitation(this.app, citation)),
        decide: (callId, decision) => conversation.decide(turnId, callId, decision),
        copy: (text) => void this.attempt(() => navigator.clipboard.writeText(text)),
        insert: (text) => insertText(this.app, text),
      }),
    );
    this.elements.set(turnId, made);
    return made;
  }

  private refresh(): void {
    const running = this.conversation?.running;
    const status = this.trouble || (this.isSending ? "Sending…" : running ? statusOf(running) : "");
    // Only when it says something else: every change is read aloud.
    if (this.statusEl.textContent !== status) this.statusEl.setText(status);
    this.stopEl.toggle(running !== undefined);
    this.sendEl.disabled = this.conversation === undefined || this.isSending;
  }

  private fail(error: unknown): void {
    this.trouble = error instanceof Error ? sentence(error.message) : String(error);
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
  "TURNWIRE_ALLOW_OBSIDIAN=true; a phone may also need HTTPS.";

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** At the cursor of the note that was used last. */
function insertText(app: App, text: string): void {
  const view = app.workspace.getMostRecentLeaf()?.view;
  if (view instanceof MarkdownView) view.editor.replaceSelection(text);
  else new Notice("Open the note that the answer should go into first.");
}
