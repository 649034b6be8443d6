/** The rules of Obsidian's community review. */

import obsidianmd from "eslint-plugin-obsidianmd";
import { defineConfig } from "eslint/config";

export default defineConfig([
  { ignores: ["main.js", "build.mjs", "eslint.config.mjs", "vitest.config.ts", "tests/", "node_modules/", "*.json"] },
  ...obsidianmd.configs.recommended,
  {
    files: ["src/**/*.ts"],
    languageOptions: { parserOptions: { project: "./tsconfig.json" } },
    rules: {
      // Product names keep their capital letters.
      "obsidianmd/ui/sentence-case": ["error", { brands: ["Obsidian", "Turnwire"] }],
    },
  },
]);
