/** The frame of the inspector's pages: a header, and a login if the server requires one. */

import { brand } from "../brand.ts";
import { type ComponentChildren, render } from "preact";
import { Logo } from "../icons.tsx";
import { Gate } from "../parts/gate.tsx";
import { ThemeButton } from "../parts/theme.tsx";
import { root } from "../server.ts";

export function renderPage(content: () => ComponentChildren): void {
  render(<Gate>{() => <Frame>{content()}</Frame>}</Gate>, document.getElementById("root")!);
}

function Frame({ children }: { children: ComponentChildren }) {
  return (
    <div class="inspector">
      <header class="inspector-head">
        <a class="brand" href={`${root}/`}>
          <Logo /> {brand.name}
        </a>
        <span class="faint">Turn inspector</span>
        <span class="spring" />
        <ThemeButton />
      </header>
      <main>{children}</main>
    </div>
  );
}
