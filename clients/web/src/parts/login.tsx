/** Where a key is exchanged for a cookie that no script can read. The key itself is kept nowhere. */

import { useState } from "preact/hooks";
import { focusFirst } from "../focusing.ts";
import { Logo } from "../icons.tsx";
import { isStatus, logIn, type Me, told } from "../server.ts";

export function Login({ onDone }: { onDone: (me: Me) => void }) {
  const [key, setKey] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      onDone(await logIn(key.trim()));
    } catch (error) {
      setProblem(isStatus(error, 401) ? "This key is not valid here." : told(error));
      setBusy(false);
    }
  };
  return (
    <main class="login">
      <form onSubmit={submit} data-testid="login">
        <Logo />
        <h1>Turnwire</h1>
        <p class="faint">This server asks who you are. Paste your API key to come in.</p>
        <label class="field">
          <span>API key</span>
          <input
            type="password"
            autocomplete="current-password"
            placeholder="tw_…"
            data-testid="key"
            required
            value={key}
            ref={focusFirst}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </label>
        {problem && (
          <p role="alert" class="problem">
            {problem}
          </p>
        )}
        <button type="submit" class="primary" disabled={isBusy || !key.trim()}>
          {isBusy ? "One moment…" : "Log in"}
        </button>
        <p class="faint small">
          Whoever runs the server makes one with <code>turnwire keys create</code>.
        </p>
      </form>
    </main>
  );
}
