/** The connection state: shown while the server is unreachable, and when it is back. */

import { useEffect, useState } from "preact/hooks";
import type { ConnectionState } from "../../../js/src/index.ts";
import { client } from "../server.ts";

export type Reach = ConnectionState | "back";

const BACK_MS = 2500;
export const REACH_TEXT: { [reach in Reach]: string } = {
  online: "",
  back: "Reconnected",
  connecting: "Reconnecting…",
  offline: "Server unreachable. Retrying…",
};

export function useReach(): Reach {
  const [reach, setReach] = useState<Reach>("online");
  useEffect(() => {
    let quiet: ReturnType<typeof setTimeout> | undefined;
    return client.onConnection((now) => {
      clearTimeout(quiet);
      if (now !== "online") return setReach(now);
      setReach((before) => (before === "online" ? "online" : "back"));
      quiet = setTimeout(() => setReach("online"), BACK_MS);
    });
  }, []);
  return reach;
}

export function ReachPill({ reach }: { reach: Reach }) {
  return (
    <div class={`connection ${reach}`} data-testid="connection" data-state={reach}>
      {REACH_TEXT[reach]}
    </div>
  );
}
