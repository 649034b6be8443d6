/** Lets people in: at once, or after they have said who they are. */

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { isStatus, type Me, told, whoAmI } from "../server.ts";
import { Login } from "./login.tsx";

const AGAIN_MS = 2000;

export function Gate({ children }: { children: (me: Me, leave: () => void) => ComponentChildren }) {
  const [me, setMe] = useState<Me | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const enter = useCallback(() => {
    whoAmI().then(
      (found) => (setMe(found), setProblem(null)),
      (error: unknown) => {
        setProblem(told(error));
        if (!isStatus(error, 403)) setTimeout(enter, AGAIN_MS);
      },
    );
  }, []);
  useEffect(enter, []);
  if (me?.login_required) return <Login onDone={setMe} />;
  if (me) return <>{children(me, () => setMe({ ...me, login_required: true, logged_in: false }))}</>;
  return problem ? (
    <main class="login">
      <p role="alert" class="failure">
        {problem}
      </p>
    </main>
  ) : null;
}
