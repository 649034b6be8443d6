/** Forms of JSON schemas: a flat object of plain values, or one plain value. */

import type { Arguments, QuestionSchema } from "../../js/src/index.ts";

export interface FormField {
  /** The name of the property; "" for a schema that is no object. */
  name: string;
  label: string;
  hint: string | undefined;
  kind: "text" | "number" | "boolean" | "choice" | "choices" | "json";
  isRequired: boolean;
  initial: FieldValue;
  /** The choices, by the text that is shown. */
  options: { value: unknown; text: string }[];
  /** The attributes with which the browser checks the input. */
  attributes: { [name: string]: string | number };
}

/** The state of an input: its text, whether it is checked, or the indexes of the choices. */
export type FieldValue = string | boolean | number[];

const INPUT_TYPES: { [format: string]: string } = { email: "email", uri: "url", date: "date", "date-time": "datetime-local" };

/** Returns the fields of a question; without a schema, one text. */
export function fieldsOf(schema: QuestionSchema | undefined): FormField[] {
  if (!schema) return [field("", { type: "string" }, true)];
  const { properties, required = [] } = schema as { properties?: { [name: string]: QuestionSchema }; required?: string[] };
  if (!properties) return [field("", schema, true)];
  return Object.entries(properties).map(([name, part]) => field(name, part, required.includes(name)));
}

/** Returns fields to edit arguments with; nested values are edited as JSON. */
export function fieldsOfArguments(args: Arguments): FormField[] {
  return Object.entries(args).map(([name, value]) => {
    const kind = typeof value;
    const type = kind === "string" || kind === "number" || kind === "boolean" ? kind : "json";
    return field(name, { type, default: value }, type !== "string");
  });
}

function field(name: string, schema: QuestionSchema, isRequired: boolean): FormField {
  const text = (key: string): string | undefined => (typeof schema[key] === "string" ? schema[key] : undefined);
  const options = optionsOf(schema) ?? optionsOf(schema.items as QuestionSchema | undefined);
  const kind = kindOf(schema, options !== undefined);
  return {
    name,
    label: text("title") ?? (name || "Your answer"),
    hint: text("description"),
    kind,
    isRequired,
    initial: initialOf(kind, schema.default, options ?? []),
    options: options ?? [],
    attributes: attributesOf(schema, kind),
  };
}

function kindOf({ type }: QuestionSchema, hasOptions: boolean): FormField["kind"] {
  if (type === "array") return "choices";
  if (hasOptions) return "choice";
  if (type === "number" || type === "integer") return "number";
  return type === "boolean" || type === "json" ? type : "text";
}

function optionsOf(schema: QuestionSchema | undefined): FormField["options"] | undefined {
  if (!schema) return undefined;
  const titled = (schema.oneOf ?? schema.anyOf) as { const: unknown; title?: string }[] | undefined;
  if (titled) return titled.map(({ const: value, title }) => ({ value, text: title ?? String(value) }));
  if ("const" in schema) return [{ value: schema.const, text: String(schema.const) }];
  const names = schema.enumNames as string[] | undefined;
  return (schema.enum as unknown[] | undefined)?.map((value, index) => ({ value, text: names?.[index] ?? String(value) }));
}

function initialOf(kind: FormField["kind"], value: unknown, options: FormField["options"]): FieldValue {
  const indexes = options.flatMap((option, index) => ((Array.isArray(value) ? value : [value]).includes(option.value) ? [index] : []));
  switch (kind) {
    case "boolean":
      return value === true;
    case "choice":
      return indexes.length ? String(indexes[0]) : "";
    case "choices":
      return indexes;
    case "json":
      return JSON.stringify(value, null, 2);
    default:
      return value === undefined || value === null ? "" : String(value);
  }
}

function attributesOf(schema: QuestionSchema, kind: FormField["kind"]): FormField["attributes"] {
  if (kind === "number") return { type: "number", step: schema.type === "integer" ? 1 : "any", ...given(schema, { minimum: "min", maximum: "max" }) };
  if (kind !== "text") return {};
  const type = INPUT_TYPES[String(schema.format)] ?? "text";
  return { type, ...given(schema, { minLength: "minLength", maxLength: "maxLength" }) };
}

function given(schema: QuestionSchema, names: { [keyword: string]: string }): { [name: string]: number } {
  const known = Object.entries(names).filter(([keyword]) => typeof schema[keyword] === "number");
  return Object.fromEntries(known.map(([keyword, name]) => [name, schema[keyword] as number]));
}

/** Returns the value of a form. Empty optional fields are left out. Throws an Error that names the field. */
export function valueOf(fields: FormField[], values: { [name: string]: FieldValue }): unknown {
  const single = fields.length === 1 && fields[0]!.name === "" ? fields[0] : undefined;
  if (single) return fieldValue(single, values[""] ?? single.initial);
  const entries = fields.map((each) => [each.name, fieldValue(each, values[each.name] ?? each.initial)]);
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
}

function fieldValue({ kind, options, label, isRequired }: FormField, value: FieldValue): unknown {
  if (Array.isArray(value)) return value.map((index) => options[index]!.value);
  if (typeof value === "boolean") return value;
  if (kind === "choice") return value === "" ? undefined : options[Number(value)]!.value;
  if (kind === "number") return value.trim() === "" ? undefined : Number(value);
  if (kind === "text") return value === "" && !isRequired ? undefined : value;
  try {
    return JSON.parse(value);
  } catch {
    throw new Error(`${label}: this is not valid JSON.`);
  }
}
