import { fileURLToPath } from "node:url";

import { defineConfig } from "vitest/config";

export default defineConfig({
  resolve: {
    alias: {
      obsidian: "obsidian-test-mocks/obsidian",
      "@turnwire/client": fileURLToPath(new URL("../js/src/index.ts", import.meta.url)),
    },
  },
  test: {
    environment: "jsdom",
    include: ["tests/**/*.test.ts"],
    setupFiles: ["tests/setup.ts"],
    testTimeout: 60_000,
    // One process, because starting more takes longer.
    fileParallelism: false,
  },
});
