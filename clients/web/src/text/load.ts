/** Loads the renderer on first use. Until it is here, text is shown as it was written. */

import { useEffect, useState } from "preact/hooks";

export type Renderer = typeof import("./renderer.js");

/** The name of the renderer's file, set by the build. */
declare const RENDERER: string;
const RETRY_MS = 1500;
let loaded: Renderer | null = null;
let loading: Promise<Renderer> | undefined;

export function loadRenderer(): Promise<Renderer> {
  loading ??= import("./renderer.js").catch(() => retry(1)).then((renderer: Renderer) => (loaded = renderer));
  return loading;
}

/** Tries again until the server is back, with a new address: some browsers remember that an address failed. */
async function retry(attempt: number): Promise<Renderer> {
  await new Promise((go) => setTimeout(go, RETRY_MS));
  const address = new URL(RENDERER, import.meta.url).href;
  return (import(`${address}?retry=${attempt}`) as Promise<Renderer>).catch(() => retry(attempt + 1));
}

export function useRenderer(): Renderer | null {
  const [renderer, setRenderer] = useState(loaded);
  useEffect(() => {
    if (!renderer) void loadRenderer().then((result) => setRenderer(result));
  }, []);
  return renderer;
}
