/** Bundles the tests and runs them in Node. */

import { build } from "esbuild";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { spawnSync } from "node:child_process";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = await mkdtemp(join(tmpdir(), "turnwire-web-"));
try {
  const names = (await readdir(here)).filter((name) => name.endsWith(".test.ts"));
  await build({
    entryPoints: names.map((name) => join(here, name)),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    target: "node20",
    logLevel: "warning",
  });
  process.exitCode =
    spawnSync(process.execPath, ["--test", ...names.map((name) => join(out, name.replace(/ts$/, "mjs")))], {
      stdio: "inherit",
    }).status ?? 1;
} finally {
  await rm(out, { recursive: true });
}
