/** The plugin in a real browser, with cross-origin requests and a mocked Obsidian. */

import type { PluginManifest } from "obsidian";
import { App, MarkdownRenderer, WorkspaceLeaf } from "obsidian-test-mocks/obsidian";
import { setup } from "obsidian-test-mocks/setup";

import manifest from "../manifest.json";
import TurnwirePlugin from "../src/main";
import { ChatView } from "../src/view";

declare global {
  interface Window {
    openPane(url: string, agent: string): Promise<void>;
  }
}

window.openPane = async (url, agent) => {
  setup();
  MarkdownRenderer.render = async (_app, markdown, el) => void el.createEl("p", { text: markdown });
  const app = App.createConfigured__();
  const plugin = new TurnwirePlugin(app.asOriginalType__(), manifest as PluginManifest);
  await plugin.saveData({ url, agent });
  await plugin.onload();
  const leaf = WorkspaceLeaf.create2__(app);
  const view = new ChatView(leaf.asOriginalType3__(), plugin);
  await leaf.open(view);
  document.body.append(view.contentEl);
  view.load();
  await view.onOpen();
};
