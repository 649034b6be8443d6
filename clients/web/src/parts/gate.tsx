/** Shows the page, after a login if the server requires one. */

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { Logo } from "../icons.tsx";
import { isStatus, type Me, errorText, fetchMe } from "../server.ts";
import { Login } from "./login.tsx";

const RETRY_MS = 2000;

export function Gate({ children }: { children: (me: Me, leave: () => void) => ComponentChildren }) {
  const [me, setMe] = useState<Me | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const load = useCallback(() => {
    fetchMe().then(
      (result) => (setMe(result), setProblem(null)),
      (error: unknown) => {
        setProblem(errorText(error));
        if (!isStatus(error, 403)) setTimeout(load, RETRY_MS);
      },
    );
  }, []);
  useEffect(load, []);
  if (me?.login_required) return <Login onDone={setMe} />;
  if (me && me.principal === null) return <SignedOut onRetry={load} />;
  if (me) return <>{children(me, load)}</>;
  return problem ? (
    <main class="login">
      <p role="alert" class="failure">
        {problem}
      </p>
    </main>
  ) : null;
}

/** Shown where another application knows its users: there is no key to ask for. */
function SignedOut({ onRetry }: { onRetry: () => void }) {
  return (
    <main class="login">
      <div class="card" data-testid="signed-out">
        <Logo />
        <h1>Not signed in</h1>
        <p>Your application did not sign you in. Sign in there, then try again.</p>
        <button type="button" class="primary" onClick={onRetry}>
          Try again
        </button>
      </div>
    </main>
  );
}
