/** The plugin's page in Obsidian's settings. */

import { type App, type DropdownComponent, PluginSettingTab, SecretComponent, Setting, type SettingDefinitionItem } from "obsidian";

import { connect } from "./link";
import type TurnwirePlugin from "./main";
import { DEFAULT_SETTINGS } from "./settings";

interface Row {
  name: string;
  desc: string;
  /** Adds the row's control. */
  fill: (setting: Setting) => void;
}

export class TurnwireSettingTab extends PluginSettingTab {
  constructor(
    app: App,
    private readonly turnwire: TurnwirePlugin,
  ) {
    super(app, turnwire);
  }

  /** Obsidian 1.13 and later: the settings as values, which its search finds. */
  override getSettingDefinitions(): SettingDefinitionItem[] {
    return this.rows().map(({ name, desc, fill }) => ({
      name,
      desc,
      render: (setting: Setting) => fill(setting.setName(name).setDesc(desc)),
    }));
  }

  /** Obsidian before 1.13. */
  override display(): void {
    this.containerEl.empty();
    for (const { name, desc, fill } of this.rows()) fill(new Setting(this.containerEl).setName(name).setDesc(desc));
  }

  private rows(): Row[] {
    const { turnwire } = this;
    const { settings } = turnwire;
    return [
      {
        name: "Server",
        desc: "The address of your server. Your questions and notes are sent to this server only.",
        fill: (setting) => {
          setting.addText((text) =>
            text
              .setPlaceholder(DEFAULT_SETTINGS.url)
              .setValue(settings.url)
              .onChange((url) => turnwire.change({ url: url.trim() })),
          );
        },
      },
      {
        name: "Key",
        desc: "Required if the server has keys. It is stored in Obsidian's secret storage, not in the vault.",
        fill: (setting) => {
          setting.addComponent((el) =>
            new SecretComponent(this.app, el).setValue(settings.secret).onChange((secret) => turnwire.change({ secret })),
          );
        },
      },
      {
        name: "Agent",
        desc: "The agent that answers. The list comes from the server.",
        fill: (setting) => {
          setting.addDropdown((dropdown) => void this.listAgents(dropdown));
        },
      },
      {
        name: "Conversation",
        desc: "One for the whole vault, or one for each note.",
        fill: (setting) => {
          setting.addDropdown((dropdown) =>
            dropdown
              .addOption("vault", "Vault-wide")
              .addOption("note", "Per note")
              .setValue(settings.scope)
              .onChange((scope) => turnwire.change({ scope: scope === "note" ? "note" : "vault" })),
          );
        },
      },
      {
        name: "Name the note",
        desc: "Start the first question about a note with its path.",
        fill: (setting) => {
          setting.addToggle((toggle) =>
            toggle.setValue(settings.mentionNote).onChange((mentionNote) => turnwire.change({ mentionNote })),
          );
        },
      },
      {
        name: "Connection",
        desc: "Not tested yet.",
        fill: (setting) => {
          setting.addButton((button) =>
            button.setButtonText("Test connection").onClick(async () => {
              button.setDisabled(true);
              setting.setDesc("Connecting…");
              setting.setDesc(await this.test());
              button.setDisabled(false);
            }),
          );
        },
      },
    ];
  }

  /** Offers the server's agents. The current one is always offered, also when the server cannot be reached. */
  private async listAgents(dropdown: DropdownComponent): Promise<void> {
    const { agent } = this.turnwire.settings;
    dropdown.addOption("", "The server's default");
    if (agent) dropdown.addOption(agent, agent);
    dropdown.setValue(agent).onChange((name) => this.turnwire.change({ agent: name }));
    try {
      const { agents } = await connect(this.turnwire.linkOptions());
      for (const name of agents) if (name !== agent) dropdown.addOption(name, name);
    } catch {
      // "Test connection" reports why the server cannot be reached.
    }
  }

  /** Returns the result of a connection test. */
  async test(): Promise<string> {
    try {
      const { link, agents } = await connect(this.turnwire.linkOptions());
      const { agent } = this.turnwire.settings;
      if (agent && !agents.includes(agent)) return `Connected, but there is no agent “${agent}”. Agents: ${agents.join(", ")}.`;
      const how = link.mode === "streaming" ? "answers are streamed" : "answers come in larger pieces, because this server does not allow streaming to Obsidian";
      return `Connected: ${how}. Agents: ${agents.join(", ")}.`;
    } catch (error) {
      return `Not connected: ${error instanceof Error ? error.message : String(error)}`;
    }
  }
}
