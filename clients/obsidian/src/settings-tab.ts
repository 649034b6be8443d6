/** The plugin's page in Obsidian's settings. */

import { type App, PluginSettingTab, SecretComponent, Setting } from "obsidian";

import { connect } from "./link";
import type TurnwirePlugin from "./main";
import { DEFAULT_SETTINGS } from "./settings";

export class TurnwireSettingTab extends PluginSettingTab {
  constructor(
    app: App,
    private readonly turnwire: TurnwirePlugin,
  ) {
    super(app, turnwire);
  }

  override display(): void {
    const { containerEl, turnwire } = this;
    const { settings } = turnwire;
    containerEl.empty();
    new Setting(containerEl)
      .setName("Server")
      .setDesc("The address of your server. Your questions and notes are sent to this server only.")
      .addText((text) =>
        text
          .setPlaceholder(DEFAULT_SETTINGS.url)
          .setValue(settings.url)
          .onChange((url) => turnwire.change({ url: url.trim() })),
      );
    new Setting(containerEl)
      .setName("Key")
      .setDesc("Required if the server has keys. It is stored in Obsidian's secret storage, not in the vault.")
      .addComponent((el) =>
        new SecretComponent(this.app, el).setValue(settings.secret).onChange((secret) => turnwire.change({ secret })),
      );
    new Setting(containerEl)
      .setName("Agent")
      .setDesc("The agent that answers. Leave it empty for the server's default.")
      .addText((text) => text.setValue(settings.agent).onChange((agent) => turnwire.change({ agent: agent.trim() })));
    new Setting(containerEl)
      .setName("Conversation")
      .setDesc("One for the whole vault, or one for each note.")
      .addDropdown((dropdown) =>
        dropdown
          .addOption("vault", "Vault-wide")
          .addOption("note", "Per note")
          .setValue(settings.scope)
          .onChange((scope) => turnwire.change({ scope: scope === "note" ? "note" : "vault" })),
      );
    new Setting(containerEl)
      .setName("Name the note")
      .setDesc("Start the first question about a note with its path.")
      .addToggle((toggle) =>
        toggle.setValue(settings.mentionNote).onChange((mentionNote) => turnwire.change({ mentionNote })),
      );
    const test = new Setting(containerEl).setName("Connection").setDesc("Not tested yet.");
    test.addButton((button) =>
      button.setButtonText("Test connection").onClick(async () => {
        button.setDisabled(true);
        test.setDesc("Connecting…");
        test.setDesc(await this.test());
        button.setDisabled(false);
      }),
    );
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
