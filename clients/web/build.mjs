/**
 * Builds the page into src/turnwire/server/page, which is committed: nobody needs Node to run the server.
 *
 * The same sources give the same bytes: versions are pinned, nothing of the time or the machine gets in.
 * `--out FOLDER` builds elsewhere, `--sizes` tells what it weighs.
 */

import { build } from "esbuild";
import { cp, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const { values } = parseArgs({ options: { out: { type: "string" }, sizes: { type: "boolean" } } });
const out = values.out ?? join(here, "../../src/turnwire/server/page");

await rm(out, { recursive: true, force: true });
await mkdir(join(out, "assets"), { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/app.tsx", turn: "src/turn.tsx" },
  outdir: join(out, "assets"),
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022", "chrome111", "firefox113", "safari16.4"],
  chunkNames: "chunk-[hash]",
  jsx: "automatic",
  jsxImportSource: "preact",
  minify: true,
  legalComments: "eof",
  charset: "utf8",
  logLevel: "warning",
});
await build({
  absWorkingDir: here,
  entryPoints: ["static/theme.js", "src/style/app.css"],
  outdir: join(out, "assets"),
  entryNames: "[name]",
  bundle: true,
  minify: true,
  target: ["chrome111", "firefox113", "safari16.4"],
  charset: "utf8",
  logLevel: "warning",
});
for (const name of ["index.html", "turn.html"]) await cp(join(here, "static", name), join(out, name));
await cp(join(here, "static/icon.svg"), join(out, "assets/icon.svg"));

if (values.sizes) {
  let total = 0;
  for (const folder of [out, join(out, "assets")]) {
    for (const entry of (await readdir(folder, { withFileTypes: true })).filter((found) => found.isFile())) {
      const size = gzipSync(await readFile(join(folder, entry.name)), { level: 9 }).length;
      total += size;
      console.log(`${String(size).padStart(7)}  ${entry.name}`);
    }
  }
  console.log(`${String(total).padStart(7)}  all together, gzip`);
}
