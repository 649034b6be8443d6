/**
 * The widget: a chat for pages of other origins, in a shadow root.
 *
 *     <script src="https://chat.example/widget.js" data-agent="support" async></script>
 *
 * It builds elements only, and its style is a constructed sheet, so a host page's policy need only allow this server
 * as `script-src` and `connect-src`.
 */

import {
  applyEvent,
  EMPTY_VIEW,
  type Followed,
  type TurnView,
  TurnwireClient,
  TurnwireError,
} from "../../js/src/index.ts";
import { argumentLines, provenance, statusOf } from "./format.ts";
import { AnswerView } from "./text/answer.ts";

declare const WIDGET_STYLE: string;
declare const turnwireScript: HTMLScriptElement;

const STORED = "turnwire.widget.session";
const { agent, key, title = "Chat", label = "Ask a question" } = turnwireScript.dataset;
const client = new TurnwireClient({
  url: new URL(".", turnwireScript.src).href,
  credentials: "omit",
  ...(key ? { key } : {}),
});

function element<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  properties: Partial<HTMLElementTagNameMap[Name]> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Name] {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** One turn in the panel. */
class TurnPart {
  readonly element = element("section");
  readonly #message = element("div", { className: "message" });
  readonly #answer = element("div", { className: "prose" });
  readonly #status = element("p", { className: "status" });
  readonly #approvals = element("div");
  readonly #text = new AnswerView(this.#answer);
  #shown = "";
  view = EMPTY_VIEW;

  constructor() {
    this.element.dataset.testid = "turn";
    this.#answer.dataset.testid = "answer";
    this.element.append(this.#message, this.#answer, this.#approvals, this.#status);
  }

  show(): void {
    const { view } = this;
    this.#message.textContent = view.message;
    this.#text.show(view.text, false, !!view.outcome);
    if (view.outcome) this.element.dataset.outcome = view.outcome;
    const source = view.text ? provenance(view) : "";
    this.#status.textContent = view.outcome === "completed" ? source : statusText(view);
    const open = view.outcome ? [] : view.approvals;
    const name = open.map(({ call_id }) => call_id).join();
    if (name === this.#shown) return;
    this.#shown = name;
    this.#approvals.replaceChildren(
      ...open.map((request) => {
        const decide = (approved: boolean) => () => {
          void client.decide(view.turnId, request.call_id, { approved, args: request.args }).catch(report);
        };
        return element(
          "div",
          { className: "approval" },
          `Allow ${request.tool}?`,
          element("pre", { textContent: argumentLines(request.args).join("\n") }),
          element("button", { type: "button", className: "primary", textContent: "Allow", onclick: decide(true) }),
          " ",
          element("button", { type: "button", textContent: "Deny", onclick: decide(false) }),
        );
      }),
    );
  }
}

const statusText = (view: TurnView): string =>
  view.outcome === "failed" ? (view.error?.error ?? "The answer failed.") : statusOf(view);

const host = element("div");
host.dataset.testid = "turnwire-widget";
const shadow = host.attachShadow({ mode: "open" });
const sheet = new CSSStyleSheet();
sheet.replaceSync(WIDGET_STYLE);
shadow.adoptedStyleSheets = [sheet];

const log = element("div", { className: "log", role: "log", tabIndex: 0, ariaLabel: "Conversation" });
const problem = element("p", { className: "note problem", role: "alert" });
const input = element("textarea", { rows: 1, ariaLabel: "Message", placeholder: label });
const send = element("button", { className: "primary", textContent: "Send" });
const stop = element("button", { type: "button", textContent: "Stop", hidden: true });
const form = element("form", {}, input, stop, send);
const close = element("button", { type: "button", textContent: "✕", ariaLabel: "Close" });
const panel = element(
  "div",
  { className: "panel", role: "dialog", ariaLabel: title, hidden: true },
  element("header", {}, title, close),
  log,
  problem,
  form,
);
const launcher = element("button", { type: "button", className: "launcher", textContent: title, ariaExpanded: "false" });
shadow.append(panel, launcher);

const turns = new Map<string, TurnPart>();
const changed = new Set<TurnPart>();
let session: Promise<string> | undefined;
let follower: AbortController | undefined;

function report(error: unknown): void {
  if (error instanceof TurnwireError && error.code === "session_not_found") {
    // The next message begins another conversation.
    follower?.abort();
    session = last = follower = undefined;
  }
  problem.textContent = error instanceof Error ? error.message : String(error);
}

/** Returns the session of this visitor, from before or a new one. */
async function findSession(): Promise<string> {
  let stored: string | null = null;
  try {
    stored = localStorage.getItem(STORED);
  } catch {
    // Without storage the conversation lasts for this page.
  }
  if (stored) {
    try {
      return (await client.sessions.get(stored, { limit: 1 })).id;
    } catch (error) {
      if (!(error instanceof TurnwireError && error.status === 404)) throw error;
    }
  }
  const { id } = await client.sessions.create();
  try {
    localStorage.setItem(STORED, id);
  } catch {
    // See above.
  }
  return id;
}

const currentSession = (): Promise<string> => {
  session ??= findSession();
  session.catch(() => (session = undefined));
  return session;
};

/** Follows the session while the panel is open, from where it was left. */
async function follow(): Promise<void> {
  if (follower) return;
  const { signal } = (follower = new AbortController());
  try {
    const sessionId = await currentSession();
    problem.textContent = "";
    for await (const item of client.followSession(sessionId, { signal, ...(last ? { after: last } : {}) })) take(item);
  } catch (error) {
    if (!signal.aborted) (report(error), (follower = undefined));
  }
}

let last: string | undefined;

function take(item: Followed): void {
  if (item.control === "reset") {
    turns.clear();
    log.replaceChildren();
  }
  if (item.turnId === undefined) return;
  let part = turns.get(item.turnId);
  if (!part) {
    turns.set(item.turnId, (part = new TurnPart()));
    log.append(part.element);
  }
  part.view = applyEvent(part.view, item);
  if (item.event) last = item.id;
  // Everything that arrives in one task is drawn once.
  if (!changed.size) setTimeout(draw);
  changed.add(part);
}

function draw(): void {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  for (const part of changed) part.show();
  changed.clear();
  stop.hidden = ![...turns.values()].some(({ view }) => !view.outcome);
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function toggle(open: boolean): void {
  panel.hidden = !open;
  launcher.ariaExpanded = String(open);
  if (open) {
    void follow();
    input.focus();
  } else {
    follower?.abort();
    follower = undefined;
    launcher.focus();
  }
}

async function ask(): Promise<void> {
  const message = input.value.trim();
  if (!message) return;
  input.value = "";
  problem.textContent = "";
  try {
    await client.enqueue({ sessionId: await currentSession(), message, ...(agent ? { agent } : {}) });
    void follow();
  } catch (error) {
    input.value ||= message;
    report(error);
  }
}

launcher.onclick = () => toggle(!!panel.hidden);
close.onclick = () => toggle(false);
stop.onclick = () => {
  const running = [...turns.values()].filter(({ view }) => !view.outcome);
  for (const { view } of running) void client.cancel(view.turnId).catch(report);
};
form.onsubmit = (event) => {
  event.preventDefault();
  void ask();
};
input.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), void ask());
};
panel.onkeydown = (event) => {
  if (event.key === "Escape") toggle(false);
};

const mount = (): void => void document.body.append(host);
if (document.body) mount();
else addEventListener("DOMContentLoaded", mount);
