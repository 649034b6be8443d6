// Builds dist/: one file of JavaScript for every platform, and the types beside it.
import { execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const tsc = createRequire(import.meta.url).resolve("typescript/package.json").replace(/package\.json$/, "bin/tsc");

rmSync(`${here}dist`, { recursive: true, force: true });
await build({
  entryPoints: [`${here}src/index.ts`],
  outfile: `${here}dist/index.js`,
  bundle: true,
  format: "esm",
  target: "es2022",
});
execFileSync(process.execPath, [tsc, "--emitDeclarationOnly", "--declaration", "--outDir", "dist"], { cwd: here, stdio: "inherit" });
