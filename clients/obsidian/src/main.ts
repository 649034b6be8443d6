/** The plugin: its pane, its commands, its settings, and which conversation belongs where. */

import { Plugin, type TAbstractFile } from "obsidian";

import { type LinkOptions, newId } from "./link";
import { DEFAULT_SETTINGS, moved, readSettings, type TurnwireSettings } from "./settings";
import { TurnwireSettingTab } from "./settings-tab";
import { CHAT_VIEW, ChatView } from "./view";

const RELOAD_MS = 600;

export default class TurnwirePlugin extends Plugin {
  override settings: TurnwireSettings = DEFAULT_SETTINGS;
  private reloading: number | undefined;

  override async onload(): Promise<void> {
    this.settings = readSettings(await this.loadData());
    this.registerView(CHAT_VIEW, (leaf) => new ChatView(leaf, this));
    this.addRibbonIcon("message-circle", "Open chat", () => void this.openChat());
    this.addCommand({ id: "open-chat", name: "Open chat", callback: () => void this.openChat() });
    this.addCommand({ id: "new-conversation", name: "New conversation", callback: () => void this.beginAnew() });
    this.addCommand({ id: "stop", name: "Stop the answer", callback: () => this.views().forEach((view) => void view.stop()) });
    this.addSettingTab(new TurnwireSettingTab(this.app, this));
    this.registerEvent(this.app.vault.on("rename", (file, before) => void this.move(file, before)));
    this.registerEvent(this.app.vault.on("delete", (file) => void this.forgetSession(file.path)));
    this.register(() => window.clearTimeout(this.reloading));
  }

  /** Another device has written them. */
  override async onExternalSettingsChange(): Promise<void> {
    this.settings = readSettings(await this.loadData());
    this.views().forEach((view) => void view.reload());
  }

  /** How to reach the server. The key is read each time it is needed, and kept nowhere. */
  linkOptions(): LinkOptions {
    return {
      url: this.settings.url,
      key: () => (this.settings.secret && this.app.secretStorage.getSecret(this.settings.secret)) || undefined,
    };
  }

  async change(changes: Partial<TurnwireSettings>): Promise<void> {
    this.settings = { ...this.settings, ...changes };
    await this.saveData(this.settings);
    // Not after every letter of an address.
    window.clearTimeout(this.reloading);
    this.reloading = window.setTimeout(() => this.views().forEach((view) => void view.reload()), RELOAD_MS);
  }

  /** The session of a place, or the name of a new one that is not kept until something is said in it. */
  sessionOf(place: string): string {
    return this.settings.sessions[place] ?? newId();
  }

  async keepSession(place: string, sessionId: string): Promise<void> {
    if (this.settings.sessions[place] === sessionId) return;
    this.settings.sessions = { ...this.settings.sessions, [place]: sessionId };
    await this.saveData(this.settings);
  }

  /** The conversation stays on the server; this place begins a new one. */
  async forgetSession(place: string): Promise<void> {
    if (!(place in this.settings.sessions)) return;
    const { [place]: _forgotten, ...sessions } = this.settings.sessions;
    this.settings.sessions = sessions;
    await this.saveData(this.settings);
  }

  private async move(file: TAbstractFile, before: string): Promise<void> {
    this.settings.sessions = moved(this.settings.sessions, before, file.path);
    await this.saveData(this.settings);
  }

  private views(): ChatView[] {
    return this.app.workspace
      .getLeavesOfType(CHAT_VIEW)
      .map((leaf) => leaf.view)
      .filter((view) => view instanceof ChatView);
  }

  private async beginAnew(): Promise<void> {
    await this.openChat();
    await Promise.all(this.views().map((view) => view.beginAnew()));
  }

  private async openChat(): Promise<void> {
    const { workspace } = this.app;
    let leaf = workspace.getLeavesOfType(CHAT_VIEW)[0] ?? null;
    if (!leaf) {
      leaf = workspace.getRightLeaf(false);
      await leaf?.setViewState({ type: CHAT_VIEW, active: true });
    }
    if (leaf) await workspace.revealLeaf(leaf);
  }
}
