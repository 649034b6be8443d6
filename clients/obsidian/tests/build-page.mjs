/** Bundles page.ts into the given file. */

import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

await build({
  entryPoints: [here("page.ts")],
  outfile: process.argv[2],
  bundle: true,
  format: "iife",
  target: "es2022",
  alias: { obsidian: here("obsidian-in-page.ts"), "@turnwire/client": here("../../js/src/index.ts") },
  logLevel: "warning",
});
