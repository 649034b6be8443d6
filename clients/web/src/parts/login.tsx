/** The login form: exchanges a key for a cookie that scripts cannot read. The key is not stored. */

import { useState } from "preact/hooks";
import { brand } from "../brand.ts";
import { focusFirst } from "../focus.ts";
import { Logo } from "../icons.tsx";
import { isStatus, logIn, type Me, errorText } from "../server.ts";

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
      setProblem(isStatus(error, 401) ? "This key is not valid." : errorText(error));
      setBusy(false);
    }
  };
  return (
    <main class="login">
      <form onSubmit={submit} data-testid="login">
        <Logo />
        <h1>{brand.name}</h1>
        <p class="faint">This server requires an API key.</p>
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
          {isBusy ? "Logging in…" : "Log in"}
        </button>
        <p class="faint small">
          The operator of the server creates keys with <code>turnwire keys create</code>.
        </p>
      </form>
    </main>
  );
}
