/** Bundles the plugin into main.js, as Obsidian loads it. */

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
// Beside the client's sources they are used; in a repository of its own the plugin takes the client from npm.
const client = here("../js/src/index.ts");

await build({
  entryPoints: [here("src/main.ts")],
  outfile: process.argv[2] ?? here("main.js"),
  bundle: true,
  format: "cjs",
  target: "es2022",
  external: ["obsidian", "electron", "@codemirror/*", "@lezer/*"],
  alias: existsSync(client) ? { "@turnwire/client": client } : {},
  charset: "utf8",
  legalComments: "none",
  minify: true,
  logLevel: "warning",
});
