/** The API reference at `/docs`: every route of `/openapi.json`, with its fields and a form to try it. */

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { exampleOf, fieldsOf, groupsOf, type Group, type OpenApi, type Operation, requestOf, type Schema } from "./openapi.ts";

/** Where Turnwire is mounted: this script is in a folder right below it. */
const root = new URL("..", import.meta.url).href.replace(/\/$/, "");
const LONGEST_ANSWER = 100_000;

function Reference() {
  const [document, setDocument] = useState<OpenApi | null>(null);
  const [failure, setFailure] = useState("");
  const [filter, setFilter] = useState("");
  useEffect(() => {
    fetch(`${root}/openapi.json`)
      .then((response) => (response.ok ? response.json() : Promise.reject(new Error(response.statusText))))
      .then(setDocument, () => setFailure("The list of routes cannot be loaded. Reload the page to try again."));
  }, []);
  if (!document) return <p class="docs-note">{failure || "Loading …"}</p>;
  const groups = groupsOf(document, filter);
  return (
    <main class="docs">
      <header>
        <h1>
          {document.info.title} <small>{document.info.version}</small>
        </h1>
        <p>{document.info.description}</p>
        <p>
          <a href={`${root}/openapi.json`}>openapi.json</a>
        </p>
        <input
          type="search"
          aria-label="Filter routes"
          placeholder="Filter routes"
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
          data-testid="filter"
        />
      </header>
      {groups.map((group) => (
        <Section key={group.tag} group={group} document={document} />
      ))}
      {groups.length === 0 && <p class="docs-note">No route matches.</p>}
    </main>
  );
}

function Section({ group, document }: { group: Group; document: OpenApi }) {
  return (
    <section>
      <h2>{group.tag}</h2>
      {group.operations.map((operation) => (
        <Route key={operation.method + operation.path} operation={operation} document={document} />
      ))}
    </section>
  );
}

function Route({ operation, document }: { operation: Operation; document: OpenApi }) {
  const [isOpen, setOpen] = useState(false);
  const { method, path, summary } = operation;
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)} data-testid="route">
      <summary>
        <b data-method={method}>{method}</b> <code>{path}</code> <span>{summary}</span>
      </summary>
      {isOpen && <Contract operation={operation} document={document} />}
    </details>
  );
}

function Contract({ operation, document }: { operation: Operation; document: OpenApi }) {
  const { parameters, body, responses } = operation;
  return (
    <div class="docs-contract">
      {parameters.length > 0 && (
        <Fields
          title="Parameters"
          rows={parameters.map((parameter) => ({
            name: parameter.name,
            type: parameter.in,
            isRequired: parameter.required ?? false,
            description: parameter.description ?? "",
          }))}
        />
      )}
      {body && <Fields title="Body" rows={fieldsOf(body, document)} />}
      <Fields
        title="Responses"
        rows={Object.entries(responses).map(([status, response]) => ({
          name: status,
          type: Object.keys(response.content ?? {}).join(", "),
          isRequired: false,
          description: response.description ?? "",
        }))}
      />
      {operation.isSocket ? null : <Trial operation={operation} body={body} document={document} />}
    </div>
  );
}

interface Row {
  name: string;
  type: string;
  isRequired: boolean;
  description: string;
}

function Fields({ title, rows }: { title: string; rows: Row[] }) {
  return (
    <table>
      <caption>{title}</caption>
      <tbody>
        {rows.map((row) => (
          <tr key={row.name}>
            <th scope="row">
              <code>{row.name}</code>
              {row.isRequired && <abbr title="required">*</abbr>}
            </th>
            <td>{row.type}</td>
            <td>{row.description}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** A form that sends the request with the rights of whoever looks at the page, and shows the answer as it comes. */
function Trial({ operation, body, document }: { operation: Operation; body: Schema | null; document: OpenApi }) {
  const [values, setValues] = useState<Record<string, string>>({});
  const [text, setText] = useState(() => (body ? JSON.stringify(exampleOf(body, document), null, 2) : ""));
  const [answer, setAnswer] = useState("");
  const [sending, setSending] = useState<AbortController | null>(null);
  const { path, init } = requestOf(operation, values, text);
  // A stream would stay open when its route is folded.
  useEffect(() => () => sending?.abort(), [sending]);
  const send = async (event: Event) => {
    event.preventDefault();
    const controller = new AbortController();
    setSending(controller);
    try {
      await show(await fetch(root + path, { ...init, signal: controller.signal }), setAnswer);
    } catch (error) {
      setAnswer((shown) => `${shown}\n${controller.signal.aborted ? "Stopped." : String(error)}`.trim());
    } finally {
      setSending(null);
    }
  };
  return (
    <form onSubmit={send}>
      {operation.parameters.map((parameter) => (
        <label key={parameter.in + parameter.name}>
          {parameter.name}
          <input
            name={parameter.name}
            required={parameter.required}
            value={values[parameter.name] ?? ""}
            onInput={(event) => setValues({ ...values, [parameter.name]: event.currentTarget.value })}
          />
        </label>
      ))}
      {body && (
        <label>
          body
          <textarea rows={8} value={text} spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      {sending ? (
        <button type="button" onClick={() => sending.abort()}>
          Stop
        </button>
      ) : (
        <button data-testid="send">Send</button>
      )}
      {answer && <pre data-testid="answer">{answer}</pre>}
    </form>
  );
}

async function show(response: Response, setAnswer: (shown: string) => void) {
  let shown = `${response.status} ${response.statusText}\n\n`;
  setAnswer(shown);
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  while (reader && shown.length < LONGEST_ANSWER) {
    const { done, value } = await reader.read();
    if (done) return;
    shown += value;
    setAnswer(shown);
  }
  await reader?.cancel();
}

render(<Reference />, document.getElementById("root")!);
