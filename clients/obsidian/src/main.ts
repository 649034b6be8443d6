/** The plugin: its pane, commands and settings, and the conversations of notes. */

import { Plugin, type TAbstractFile } from "obsidian";

import { type LinkOptions, newId } from "./link";
import { DEFAULT_SETTINGS, movedSessions, readSettings, type TurnwireSettings } from "./settings";
import { TurnwireSettingTab } from "./settings-tab";
import { CHAT_VIEW, ChatView } from "./view";

const RELOAD_MS = 600;

export default class TurnwirePlugin extends Plugin {
  override settings: TurnwireSettings = DEFAULT_SETTINGS;
  private reloadTimer: number | undefined;

  override async onload(): Promise<void> {
    this.settings = readSettings(await this.loadData());
    this.registerView(CHAT_VIEW, (leaf) => new ChatView(leaf, this));
    this.addRibbonIcon("message-circle", "Open chat", () => void this.openChat());
    this.addCommand({ id: "open-chat", name: "Open chat", callback: () => void this.openChat() });
    this.addCommand({ id: "new-conversation", name: "New conversation", callback: () => void this.startConversation() });
    this.addCommand({ id: "stop", name: "Stop the answer", callback: () => this.views().forEach((view) => void view.stop()) });
    this.addSettingTab(new TurnwireSettingTab(this.app, this));
    this.registerEvent(this.app.vault.on("rename", (file, before) => void this.move(file, before)));
    this.registerEvent(this.app.vault.on("delete", (file) => void this.forgetSession(file.path)));
    this.register(() => window.clearTimeout(this.reloadTimer));
  }

  /** Reloads settings that another device has written. */
  override async onExternalSettingsChange(): Promise<void> {
    this.settings = readSettings(await this.loadData());
    this.views().forEach((view) => void view.reload());
  }

  /** Returns the options of the connection. The key is read on each use and not kept. */
  linkOptions(): LinkOptions {
    return {
      url: this.settings.url || DEFAULT_SETTINGS.url,
      key: () => (this.settings.secret && this.app.secretStorage.getSecret(this.settings.secret)) || undefined,
    };
  }

  async change(changes: Partial<TurnwireSettings>): Promise<void> {
    this.settings = { ...this.settings, ...changes };
    await this.saveData(this.settings);
    // Delayed, because an address changes with every key press.
    window.clearTimeout(this.reloadTimer);
    this.reloadTimer = window.setTimeout(() => this.views().forEach((view) => void view.reload()), RELOAD_MS);
  }

  /** Returns the session of a note ("" for the vault), or a new id, which is stored with the first message. */
  sessionOf(notePath: string): string {
    return this.settings.sessions[notePath] ?? newId();
  }

  async keepSession(notePath: string, sessionId: string): Promise<void> {
    if (this.settings.sessions[notePath] === sessionId) return;
    this.settings.sessions = { ...this.settings.sessions, [notePath]: sessionId };
    await this.saveData(this.settings);
  }

  /** Forgets the session of a note, so that a new one begins. The old one stays on the server. */
  async forgetSession(notePath: string): Promise<void> {
    if (!(notePath in this.settings.sessions)) return;
    const { [notePath]: _forgotten, ...sessions } = this.settings.sessions;
    this.settings.sessions = sessions;
    await this.saveData(this.settings);
  }

  private async move(file: TAbstractFile, before: string): Promise<void> {
    this.settings.sessions = movedSessions(this.settings.sessions, before, file.path);
    for (const view of this.views()) view.noteMoved(before, file.path);
    await this.saveData(this.settings);
  }

  private views(): ChatView[] {
    return this.app.workspace
      .getLeavesOfType(CHAT_VIEW)
      .map((leaf) => leaf.view)
      .filter((view) => view instanceof ChatView);
  }

  private async startConversation(): Promise<void> {
    await this.openChat();
    await Promise.all(this.views().map((view) => view.startConversation()));
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
