/** The inputs of a form. */

import { useState } from "preact/hooks";
import { type FieldValue, type FormField, valueOf } from "../form.ts";
import { errorText } from "../server.ts";

interface FormProps {
  fields: FormField[];
  /** The text of the button, and of the button while the value is sent. */
  submit: [string, string];
  /** Sends the value; an error is shown. */
  onSubmit: (value: unknown) => Promise<void>;
  /** The second button. */
  other: [string, () => Promise<void>];
  testId: string;
}

export function ValueForm({ fields, submit, onSubmit, other, testId }: FormProps) {
  const [values, setValues] = useState<{ [name: string]: FieldValue }>({});
  const [isSending, setSending] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const perform = async (act: () => Promise<void>) => {
    setSending(true);
    setProblem(null);
    try {
      await act();
    } catch (error) {
      setProblem(errorText(error));
      setSending(false);
    }
  };
  return (
    <form
      class="form"
      data-testid={testId}
      onSubmit={(event) => {
        event.preventDefault();
        void perform(async () => onSubmit(valueOf(fields, values)));
      }}
    >
      {fields.map((field) => (
        <Field
          key={field.name}
          field={field}
          value={values[field.name] ?? field.initial}
          onChange={(value) => setValues({ ...values, [field.name]: value })}
        />
      ))}
      <div class="row">
        <button type="submit" class="primary" data-testid={`${testId}-submit`} disabled={isSending}>
          {isSending ? submit[1] : submit[0]}
        </button>
        <button
          type="button"
          class="secondary"
          data-testid={`${testId}-other`}
          disabled={isSending}
          onClick={() => void perform(other[1])}
        >
          {other[0]}
        </button>
      </div>
      {problem && (
        <p role="alert" class="problem">
          {problem}
        </p>
      )}
    </form>
  );
}

interface FieldProps {
  field: FormField;
  value: FieldValue;
  onChange: (value: FieldValue) => void;
}

function Field(props: FieldProps) {
  const { field, value, onChange } = props;
  if (field.kind === "choices") return <Choices {...props} />;
  if (field.kind === "boolean") {
    return (
      <label class="check">
        <input type="checkbox" checked={value === true} onInput={(event) => onChange(event.currentTarget.checked)} />
        <span>
          {field.label} <Hint field={field} />
        </span>
      </label>
    );
  }
  return (
    <label class="field">
      <span>
        {field.label}
        {!field.isRequired && " (optional)"} <Hint field={field} />
      </span>
      <Input {...props} />
    </label>
  );
}

function Input({ field, value, onChange }: FieldProps) {
  const common = { value: String(value), required: field.isRequired };
  if (field.kind === "choice") {
    return (
      <select {...common} onInput={(event) => onChange(event.currentTarget.value)}>
        <option value="">Choose…</option>
        {field.options.map(({ text }, index) => (
          <option key={index} value={index}>
            {text}
          </option>
        ))}
      </select>
    );
  }
  if (field.kind === "json") {
    return <textarea {...common} rows={4} onInput={(event) => onChange(event.currentTarget.value)} />;
  }
  return <input {...common} {...field.attributes} onInput={(event) => onChange(event.currentTarget.value)} />;
}

function Choices({ field, value, onChange }: FieldProps) {
  const chosen = Array.isArray(value) ? value : [];
  return (
    <fieldset>
      <legend>
        {field.label} <Hint field={field} />
      </legend>
      {field.options.map(({ text }, index) => (
        <label key={index} class="check">
          <input
            type="checkbox"
            checked={chosen.includes(index)}
            onInput={(event) =>
              onChange(field.options.map((_, each) => each).filter((each) => (each === index ? event.currentTarget.checked : chosen.includes(each))))
            }
          />
          <span>{text}</span>
        </label>
      ))}
    </fieldset>
  );
}

function Hint({ field }: { field: FormField }) {
  return field.hint ? <span class="faint">{field.hint}</span> : null;
}
