/** Shown instead of a turn that cannot be read. */

import { root } from "../server.ts";
import { listAddress } from "./address.ts";

export function Missing({ turnId, problem, isGone }: { turnId: string; problem: string; isGone: boolean }) {
  return (
    <div class="missing" role="alert" data-testid="missing">
      <h1 class="inspected">{isGone ? "Turn not found" : "This turn cannot be shown"}</h1>
      <p>{problem}</p>
      <p class="faint">
        <code>{turnId}</code>
      </p>
      <p class="missing-links">
        <a class="primary" href={listAddress(new URLSearchParams())}>
          All turns
        </a>
        <a class="quiet" href={`${root}/`}>
          Start a conversation
        </a>
      </p>
    </div>
  );
}
