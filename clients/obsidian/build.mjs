/** Bundles the plugin into main.js, as Obsidian loads it. */

import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

await build({
  entryPoints: [here("src/main.ts")],
  outfile: process.argv[2] ?? here("main.js"),
  bundle: true,
  format: "cjs",
  target: "es2022",
  external: ["obsidian", "electron", "@codemirror/*", "@lezer/*"],
  alias: { "@turnwire/client": here("../js/src/index.ts") },
  charset: "utf8",
  legalComments: "none",
  minify: true,
  logLevel: "warning",
});
