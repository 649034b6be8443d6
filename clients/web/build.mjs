/**
 * Builds the page into src/turnwire/server/page, which is committed, so that the server needs no Node.
 *
 * The same sources give the same bytes: versions are pinned, and no time or path gets in.
 * `--out FOLDER` builds elsewhere, `--sizes` prints the sizes.
 */

import { build } from "esbuild";
import { cp, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const { values } = parseArgs({ options: { out: { type: "string" }, sizes: { type: "boolean" } } });
const out = values.out ?? join(here, "../../src/turnwire/server/page");

await rm(out, { recursive: true, force: true });
await mkdir(join(out, "assets"), { recursive: true });
const shared = {
  absWorkingDir: here,
  outdir: join(out, "assets"),
  bundle: true,
  format: "esm",
  target: ["es2022", "chrome123", "firefox121", "safari17.5"],
  jsx: "automatic",
  jsxImportSource: "preact",
  minify: true,
  legalComments: "none",
  footer: { js: "// Licences of what is bundled here: licences.txt" },
  charset: "utf8",
  logLevel: "warning",
};
// What an answer needs is loaded with it. A script imports these by names with a hash, which browsers cache for ever.
const names = {};
const lazy = {
  name: "lazy",
  setup: (plugin) => {
    plugin.onResolve({ filter: /^\.\/(?:highlight|maths|renderer)\.js$/ }, ({ path }) => ({
      path: names[path],
      external: true,
    }));
  },
};
for (const name of ["highlight", "maths", "renderer"]) {
  const { metafile } = await build({
    ...shared,
    entryPoints: [`src/text/${name}.ts`],
    entryNames: "[name]-[hash]",
    plugins: [lazy],
    metafile: true,
  });
  names[`./${name}.js`] = `./${basename(Object.keys(metafile.outputs)[0])}`;
}
// Separate bundles: each page loads less than with a shared chunk.
await build({
  ...shared,
  entryPoints: {
    app: "src/app.tsx",
    docs: "src/docs.tsx",
    notify: "src/notify.ts",
    share: "src/share.tsx",
    turn: "src/turn.tsx",
    turns: "src/turns.tsx",
  },
  plugins: [lazy],
  define: { RENDERER: JSON.stringify(names["./renderer.js"]) },
});
await build({
  absWorkingDir: here,
  entryPoints: [
    "static/sw.js",
    "static/theme.js",
    "src/style/app.css",
    "src/style/docs.css",
    "src/style/inspector.css",
    "src/style/share.css",
  ],
  outdir: join(out, "assets"),
  entryNames: "[name]",
  bundle: true,
  minify: true,
  target: ["chrome123", "firefox121", "safari17.5"],
  charset: "utf8",
  logLevel: "warning",
});
// A script on another origin can load no modules from ours, so the widget has neither highlighting nor maths.
const withoutLazy = {
  name: "without-lazy",
  setup: (plugin) => {
    plugin.onResolve({ filter: /^\.\/(?:highlight|maths)\.js$/ }, ({ path }) => ({ path, namespace: "nothing" }));
    plugin.onLoad({ filter: /.*/, namespace: "nothing" }, () => ({
      contents: "export const highlight = () => {}; export const renderMaths = () => {};",
    }));
  },
};
// One plain script for pages of other origins: its style is inside, and `import.meta.url` is the address it came from.
const browsers = { target: ["es2022", "chrome123", "firefox121", "safari17.5"], charset: "utf8", logLevel: "warning" };
const style = await build({
  ...browsers,
  absWorkingDir: here,
  entryPoints: ["src/style/widget.css"],
  bundle: true,
  minify: true,
  write: false,
});
await build({
  ...browsers,
  absWorkingDir: here,
  entryPoints: ["src/widget.ts"],
  outfile: join(out, "assets/widget.js"),
  bundle: true,
  format: "iife",
  minify: true,
  legalComments: "none",
  banner: { js: "{const turnwireScript=document.currentScript;" },
  footer: { js: "}\n// Licences of what is bundled here: licences.txt" },
  plugins: [withoutLazy],
  define: { "import.meta.url": "turnwireScript.src", WIDGET_STYLE: JSON.stringify(style.outputFiles[0].text) },
});
for (const name of ["docs.html", "index.html", "share.html", "turn.html", "turns.html"]) await cp(join(here, "static", name), join(out, name));
for (const name of ["app.webmanifest", "icon.svg"]) await cp(join(here, "static", name), join(out, "assets", name));

await writeFile(join(out, "assets/licences.txt"), await licences());

if (values.sizes) {
  const pages = {
    "/": [
      "index.html",
      "assets/theme.js",
      "assets/app.css",
      "assets/app.js",
      "assets/app.webmanifest",
      "assets/icon.svg",
    ],
    "an answer": [join("assets", names["./renderer.js"])],
    "code in an answer": [join("assets", names["./highlight.js"])],
    "maths in an answer": [join("assets", names["./maths.js"])],
    "/docs": ["docs.html", "assets/theme.js", "assets/docs.css", "assets/docs.js", "assets/icon.svg"],
    "/share/{token}": [
      "share.html",
      "assets/theme.js",
      "assets/app.css",
      "assets/share.css",
      "assets/share.js",
      "assets/icon.svg",
    ],
    ...Object.fromEntries(
      ["turns", "turn"].map((name) => [
        name === "turn" ? "/turns/{id}" : "/turns",
        [
          `${name}.html`,
          "assets/theme.js",
          "assets/app.css",
          "assets/inspector.css",
          `assets/${name}.js`,
          "assets/icon.svg",
        ],
      ]),
    ),
  };
  for (const [page, names] of Object.entries(pages)) {
    const sizes = await Promise.all(
      names.map(async (name) => gzipSync(await readFile(join(out, name)), { level: 9 }).length),
    );
    names.forEach((name, index) => console.log(`${String(sizes[index]).padStart(7)}  ${name}`));
    console.log(`${String(sizes.reduce((sum, size) => sum + size)).padStart(7)}  ${page}, all together, gzip\n`);
  }
}

/** Returns the licences of the bundled packages. DOMPurify is used under Apache-2.0, the text of Turnwire's LICENSE. */
async function licences() {
  const read = async (name, file) =>
    `${name}\n\n${(await readFile(join(here, "node_modules", name, file), "utf8")).trim()}\n`;
  const purify = "dompurify\n\n(c) Cure53 and other contributors. Apache License 2.0: see Turnwire's LICENSE.\n";
  return [
    await read("preact", "LICENSE"),
    await read("marked", "LICENSE.md"),
    purify,
    await read("highlight.js", "LICENSE"),
    await read("lowlight", "license"),
    await read("devlop", "license"),
    await read("temml", "LICENSE"),
  ].join("\n");
}
