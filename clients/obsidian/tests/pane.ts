/** A pane of the plugin in a mocked Obsidian, with a real server. */

import { connect, createServer, type Server, type Socket } from "node:net";

import type { PluginManifest } from "obsidian";
import { App, WorkspaceLeaf } from "obsidian-test-mocks/obsidian";
import { vi } from "vitest";

import TurnwirePlugin from "../src/main";
import { ChatView } from "../src/view";
import manifest from "../manifest.json";

export const SERVER = process.env["TURNWIRE_URL"] ?? "";
const TIMEOUT = 20_000;

export type Step =
  | ["say", string]
  | ["think", string]
  | ["wait", string]
  | ["call", string, Record<string, unknown>]
  | ["result", string]
  | ["ask", string, Record<string, unknown>]
  | ["cite", number, string, string]
  | ["fail", string];

/** Returns a message that scripts the server's agent; `open` opens a gate. */
export function script(...steps: Step[]): string {
  return JSON.stringify(steps);
}

let gates = 0;

export function gate(): string {
  return `gate-${process.pid}-${++gates}`;
}

export async function open(name: string): Promise<void> {
  await post("/chat", { message: name, agent: "gate" });
}

export async function post(path: string, body: unknown): Promise<any> {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(SERVER + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return answer.json();
}

export async function get(path: string): Promise<any> {
  return (await fetch(SERVER + path)).json();
}

export function until<T>(check: () => T): Promise<T> {
  return vi.waitFor(check, { timeout: TIMEOUT, interval: 5 });
}

export interface Obsidian {
  app: App;
  plugin: TurnwirePlugin;
}

/** Starts Obsidian with notes and the plugin. `stored` are the saved settings. */
export async function startObsidian(
  files: Record<string, string> = {},
  stored: Record<string, unknown> = {},
): Promise<Obsidian> {
  const app = App.createConfigured__({ files });
  const plugin = new TurnwirePlugin(app.asOriginalType__(), manifest as PluginManifest);
  await plugin.saveData({ url: SERVER, agent: "play", ...stored });
  await plugin.onload();
  return { app, plugin };
}

export class Pane {
  readonly view: ChatView;
  readonly leaf: WorkspaceLeaf;

  private constructor(leaf: WorkspaceLeaf, view: ChatView) {
    this.leaf = leaf;
    this.view = view;
  }

  static async open(obsidian: Obsidian): Promise<Pane> {
    const leaf = WorkspaceLeaf.create2__(obsidian.app);
    const view = new ChatView(leaf.asOriginalType3__(), obsidian.plugin);
    await leaf.open(view);
    document.body.append(view.contentEl);
    view.load();
    await view.onOpen();
    return new Pane(leaf, view);
  }

  /** Resolves when a message can be sent. */
  isReady(): Promise<void> {
    return until(() => {
      if (this.button("Send").disabled || this.status === "Connecting…") throw new Error(this.status);
    });
  }

  async close(): Promise<void> {
    await this.view.onClose();
    this.view.unload();
    this.view.contentEl.remove();
  }

  find<T extends HTMLElement = HTMLElement>(selector: string): T {
    const element = this.view.contentEl.querySelector<T>(selector);
    if (!element) throw new Error(`there is no ${selector}`);
    return element;
  }

  all(selector: string): HTMLElement[] {
    return [...this.view.contentEl.querySelectorAll<HTMLElement>(selector)];
  }

  button(text: string): HTMLButtonElement {
    const element = this.all("button").find((candidate) => candidate.textContent === text || candidate.getAttribute("aria-label") === text);
    if (!element) throw new Error(`there is no button ${text}`);
    return element as HTMLButtonElement;
  }

  get status(): string {
    return this.find(".turnwire-status").textContent;
  }

  /** The answer of the newest turn, rendered or not. */
  get answer(): string {
    return this.all(".turnwire-answer").at(-1)?.textContent ?? "";
  }

  async ask(text: string): Promise<void> {
    await this.isReady();
    this.find<HTMLTextAreaElement>("textarea").value = text;
    this.find("textarea").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", cancelable: true }));
  }

  shows(text: string): Promise<void> {
    return until(() => {
      if (!this.answer.includes(text)) throw new Error(`the answer is ${JSON.stringify(this.answer)}; ${this.status}`);
    });
  }

  says(status: string): Promise<void> {
    return until(() => {
      if (!this.status.includes(status)) throw new Error(`the status is ${JSON.stringify(this.status)}`);
    });
  }

  isDone(): Promise<void> {
    return until(() => {
      if (this.status || !this.all(".turnwire-turn").length) throw new Error(this.status || "no turn");
      if (this.button("Stop").style.display !== "none") throw new Error("it can still be stopped");
      if (this.all(".turnwire-answer .turnwire-tail").some((candidate) => candidate.textContent)) throw new Error("it is not rendered");
    });
  }
}

/** A TCP proxy to the server that can be cut. */
export class Wire {
  url = "";
  connections = 0;
  readonly #sockets = new Set<Socket>();
  #server: Server | undefined;
  #port = 0;

  static async lay(): Promise<Wire> {
    const wire = new Wire();
    await wire.mend();
    return wire;
  }

  async mend(): Promise<void> {
    const target = Number(new URL(SERVER).port);
    this.#server = createServer((near) => {
      this.connections++;
      const far = connect(target, "127.0.0.1");
      for (const socket of [near, far]) {
        this.#sockets.add(socket);
        socket.on("error", () => {}).on("close", () => (near.destroy(), far.destroy()));
      }
      near.pipe(far).pipe(near);
    });
    await new Promise<void>((resolve) => this.#server!.listen(this.#port, "127.0.0.1", resolve));
    this.#port = (this.#server.address() as { port: number }).port;
    this.url = `http://127.0.0.1:${this.#port}`;
  }

  /** Closes all connections; with `stay`, new ones are refused until `mend`. */
  async cut({ stay = false } = {}): Promise<void> {
    const closed = stay && new Promise((resolve) => this.#server!.close(resolve));
    for (const socket of this.#sockets) socket.destroy();
    this.#sockets.clear();
    if (closed) await closed;
  }
}
