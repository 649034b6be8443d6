// Builds dist/: one file of JavaScript, and the types beside it. `--page FILE` builds the page of the tests instead.
import { execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const { values } = parseArgs({ options: { page: { type: "string" } } });
const options = { bundle: true, format: "esm", target: "es2022", jsx: "automatic", absWorkingDir: here };

if (values.page) {
  const define = { "process.env.NODE_ENV": '"development"' };
  await build({ ...options, define, entryPoints: ["test/page.tsx"], outfile: values.page });
} else {
  rmSync(`${here}dist`, { recursive: true, force: true });
  const external = ["react", "@turnwire/client"];
  await build({ ...options, external, entryPoints: ["src/index.ts"], outfile: "dist/index.js" });
  const tsc = createRequire(import.meta.url).resolve("typescript/package.json").replace(/package\.json$/, "bin/tsc");
  const types = ["--emitDeclarationOnly", "--declaration", "--rootDir", "src", "--outDir", "dist", "--jsx", "react-jsx"];
  const strict = ["--ignoreConfig", "--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"];
  execFileSync(process.execPath, [tsc, ...strict, ...types, "--skipLibCheck", "src/index.ts"], { cwd: here, stdio: "inherit" });
}
