/** The elements of one turn: question, steps, answer, sources and approvals. */

import type { ApprovalRequestEvent, CitationEvent, Decision, TurnView } from "@turnwire/client";
import { type App, Component, Keymap, MarkdownRenderer, setIcon, setTooltip } from "obsidian";

import { noteOf } from "./citations";
import { finishedEnd, harmless } from "./markdown";
import { stepText } from "./status";

export interface TurnActions {
  /** The note that relative links start from. */
  sourcePath(): string;
  open(citation: CitationEvent): void;
  decide(callId: string, decision: Decision): Promise<void>;
  copy(text: string): void;
  insert(text: string): void;
}

export class TurnElement extends Component {
  readonly el: HTMLElement;
  private shown: TurnView | undefined;
  private rendered = 0;
  private renderings: Component[] = [];
  private isComplete = false;
  private readonly questionEl: HTMLElement;
  private readonly reasoningEl: HTMLDetailsElement;
  private readonly stepsEl: HTMLDetailsElement;
  private readonly blocksEl: HTMLElement;
  private readonly tailEl: HTMLElement;
  private readonly approvalsEl: HTMLElement;
  private readonly sourcesEl: HTMLElement;
  private readonly endEl: HTMLElement;

  constructor(
    parent: HTMLElement,
    private readonly app: App,
    private readonly actions: TurnActions,
  ) {
    super();
    this.el = parent.createEl("article", { cls: "turnwire-turn" });
    this.questionEl = this.el.createDiv({ cls: "turnwire-question" });
    this.reasoningEl = this.el.createEl("details", { cls: "turnwire-steps" });
    this.reasoningEl.createEl("summary", { text: "Reasoning" });
    this.reasoningEl.createDiv({ cls: "turnwire-tail" });
    this.reasoningEl.hide();
    this.stepsEl = this.el.createEl("details", { cls: "turnwire-steps" });
    const answer = this.el.createDiv({ cls: "turnwire-answer" });
    this.blocksEl = answer.createDiv({ cls: "turnwire-blocks" });
    this.tailEl = answer.createDiv({ cls: "turnwire-tail" });
    this.approvalsEl = this.el.createDiv();
    this.sourcesEl = this.el.createDiv({ cls: "turnwire-sources" });
    this.endEl = this.el.createDiv();
    this.registerDomEvent(answer, "click", (event) => this.followLink(event));
  }

  update(turn: TurnView): void {
    const before = this.shown;
    this.shown = turn;
    if (turn.message !== before?.message) this.questionEl.setText(turn.message);
    if (turn.reasoning !== (before?.reasoning ?? "")) {
      this.reasoningEl.toggle(turn.reasoning !== "");
      this.reasoningEl.lastElementChild?.setText(turn.reasoning);
    }
    if (turn.steps !== before?.steps) this.drawSteps(turn);
    if (before && !turn.text.startsWith(before.text)) this.clearAnswer();
    this.drawText(turn);
    if (turn.approvals !== before?.approvals) this.drawApprovals(turn.approvals);
    if (turn.citations !== before?.citations) this.drawSources(turn.citations);
    if (turn.phase === "ended" && before?.phase !== "ended") this.drawEnd(turn);
  }

  override onunload(): void {
    this.el.remove();
  }

  /** Opens links to notes, which Obsidian handles in its own views only. */
  private followLink(event: MouseEvent): void {
    const link = (event.target as HTMLElement).closest?.("a.internal-link");
    const note = link?.getAttribute("data-href");
    if (!note) return;
    event.preventDefault();
    void this.app.workspace.openLinkText(note, this.actions.sourcePath(), Keymap.isModEvent(event));
  }

  private drawSteps(turn: TurnView): void {
    this.stepsEl.empty();
    this.stepsEl.toggle(turn.steps.length > 0);
    this.stepsEl.createEl("summary", { text: turn.steps.length === 1 ? "1 step" : `${turn.steps.length} steps` });
    for (const step of turn.steps) {
      const line = this.stepsEl.createDiv({ cls: `turnwire-step is-${step.state}` });
      line.createSpan({ text: stepText(step) });
      if (step.hits) line.createSpan({ cls: "turnwire-detail", text: `${step.hits.length} found` });
      if (step.ms !== undefined) line.createSpan({ cls: "turnwire-detail", text: `${(step.ms / 1000).toFixed(1)} s` });
      if (step.state === "failed" && step.result !== undefined) line.createDiv({ cls: "turnwire-detail", text: plain(step.result) });
    }
  }

  /** Renders finished blocks; text that is still being written is plain. */
  private drawText(turn: TurnView): void {
    if (turn.phase === "ended") {
      if (!this.isComplete) void this.drawComplete(turn);
      return;
    }
    const end = finishedEnd(turn.text, this.rendered);
    if (end > this.rendered) {
      void this.render(turn.text.slice(this.rendered, end), this.blocksEl.createDiv());
      this.rendered = end;
    }
    this.tailEl.setText(turn.text.slice(this.rendered));
  }

  /** Renders the complete answer at once, because lists and footnotes may span blocks. */
  private async drawComplete(turn: TurnView): Promise<void> {
    this.isComplete = true;
    const container = createDiv();
    const earlier = this.renderings.splice(0);
    await this.render(turn.text, container);
    if (this.shown !== turn && !this.isComplete) return;
    for (const item of earlier) this.removeChild(item);
    this.blocksEl.empty();
    this.blocksEl.append(container);
    this.tailEl.empty();
    this.rendered = turn.text.length;
    this.linkMarkers(container, turn.citations);
  }

  private async render(markdown: string, el: HTMLElement): Promise<void> {
    const component = this.addChild(new Component());
    this.renderings.push(component);
    await MarkdownRenderer.render(this.app, harmless(markdown), el, this.actions.sourcePath(), component);
  }

  private clearAnswer(): void {
    for (const item of this.renderings.splice(0)) this.removeChild(item);
    this.rendered = 0;
    this.isComplete = false;
    this.blocksEl.empty();
    this.tailEl.empty();
    this.endEl.empty();
  }

  /** Replaces each `[n]` of the answer by a button that opens its source. */
  private linkMarkers(el: HTMLElement, citations: readonly CitationEvent[]): void {
    const byIndex = new Map(citations.map((item) => [item.index, item]));
    const walker = el.doc.createTreeWalker(el, NodeFilter.SHOW_TEXT);
    const texts: Text[] = [];
    while (walker.nextNode()) texts.push(walker.currentNode as Text);
    for (const text of texts) {
      if (text.parentElement?.closest("code, pre, a, button")) continue;
      const pieces = text.data.split(/(\[\d{1,3}\])/);
      if (pieces.length === 1) continue;
      const nodes = pieces.map((piece) => {
        const citation = byIndex.get(Number(/^\[(\d{1,3})\]$/.exec(piece)?.[1] ?? -1));
        return citation ? this.marker(citation) : piece;
      });
      text.replaceWith(...nodes);
    }
  }

  private marker(citation: CitationEvent): HTMLElement {
    const button = createEl("button", { cls: "turnwire-marker", text: String(citation.index) });
    setTooltip(button, citation.supporting_quote ?? citation.title ?? "");
    this.registerDomEvent(button, "click", () => this.actions.open(citation));
    return button;
  }

  /** Lists each source once, with its first passage. */
  private drawSources(citations: readonly CitationEvent[]): void {
    this.sourcesEl.empty();
    const seen = new Set<number>();
    for (const citation of citations) {
      if (seen.has(citation.index)) continue;
      seen.add(citation.index);
      const note = noteOf(citation)?.replace(/\.md$/, "");
      const name = note?.slice(note.lastIndexOf("/") + 1) ?? citation.title ?? "Source";
      const button = this.sourcesEl.createEl("button", { cls: "turnwire-source", text: `${citation.index} ${name}` });
      setTooltip(button, [note, citation.heading, citation.supporting_quote].filter(Boolean).join("\n"));
      this.registerDomEvent(button, "click", () => this.actions.open(citation));
    }
  }

  /** Shows the approval requests with their full arguments. */
  private drawApprovals(requests: readonly ApprovalRequestEvent[]): void {
    this.approvalsEl.empty();
    for (const request of requests) {
      const box = this.approvalsEl.createDiv({ cls: "turnwire-approval", attr: { role: "group", "aria-label": "Approval" } });
      box.createDiv({ cls: "turnwire-approval-title", text: `Allow ${request.tool}?` });
      if (request.reason) box.createDiv({ text: request.reason });
      for (const [name, value] of Object.entries(request.args)) {
        box.createDiv({ cls: "turnwire-detail", text: name });
        box.createEl("pre", { cls: "turnwire-argument", text: plain(value) });
      }
      const row = box.createDiv({ cls: "turnwire-row" });
      const problem = box.createDiv({ cls: "turnwire-problem" });
      const decide = (text: string, cls: string, approved: boolean): void => {
        const button = row.createEl("button", { text, cls });
        this.registerDomEvent(button, "click", () => {
          for (const item of row.findAll("button")) item.setAttr("disabled", "");
          this.actions.decide(request.call_id, { approved, args: request.args }).catch((error: unknown) => {
            problem.setText(error instanceof Error ? error.message : String(error));
            for (const item of row.findAll("button")) item.removeAttribute("disabled");
          });
        });
      };
      decide("Allow", "mod-cta", true);
      decide("Deny", "mod-warning", false);
    }
  }

  private drawEnd(turn: TurnView): void {
    this.endEl.empty();
    if (turn.error) this.endEl.createDiv({ cls: "turnwire-problem", text: turn.error.error, attr: { role: "alert" } });
    else if (turn.outcome === "cancelled") this.endEl.createDiv({ cls: "turnwire-detail", text: "Stopped." });
    else if (turn.outcome === "interrupted") {
      this.endEl.createDiv({ cls: "turnwire-problem", text: "The server stopped before the answer was complete." });
    }
    if (!turn.text) return;
    const row = this.endEl.createDiv({ cls: "turnwire-row" });
    const act = (icon: string, label: string, run: () => void): void => {
      const button = row.createEl("button", { cls: "clickable-icon", attr: { "aria-label": label } });
      setIcon(button, icon);
      this.registerDomEvent(button, "click", run);
    };
    act("copy", "Copy the answer", () => this.actions.copy(turn.text));
    act("text-cursor-input", "Insert the answer into the note", () => this.actions.insert(turn.text));
  }
}

function plain(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, undefined, 2);
}
