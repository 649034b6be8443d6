/** An OpenAPI document, as far as the API reference shows it. */

export interface Schema {
  $ref?: string;
  type?: string;
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  anyOf?: Schema[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
}

export interface Parameter {
  name: string;
  in: string;
  required?: boolean;
  description?: string;
}

export interface Answer {
  description?: string;
  content?: Record<string, unknown>;
}

interface Declared {
  tags?: string[];
  summary?: string;
  parameters?: Parameter[];
  requestBody?: { content: Record<string, { schema?: Schema }> };
  responses: Record<string, Answer>;
}

export interface OpenApi {
  info: { title: string; version: string; description?: string };
  paths: Record<string, Record<string, Declared>>;
  components?: { schemas?: Record<string, Schema> };
}

export interface Operation {
  method: string;
  path: string;
  summary: string;
  parameters: Parameter[];
  body: Schema | null;
  responses: Record<string, Answer>;
  isSocket: boolean;
}

export interface Group {
  tag: string;
  operations: Operation[];
}

/** The operations whose method, path or summary contains the filter, by their first tag. */
export function groupsOf(document: OpenApi, filter: string): Group[] {
  const wanted = filter.trim().toLowerCase();
  const groups = new Map<string, Operation[]>();
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, declared] of Object.entries(methods)) {
      const operation = operationOf(method, path, declared);
      if (!`${operation.method} ${path} ${operation.summary}`.toLowerCase().includes(wanted)) continue;
      const tag = declared.tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), operation]);
    }
  }
  return [...groups].map(([tag, operations]) => ({ tag, operations }));
}

function operationOf(method: string, path: string, declared: Declared): Operation {
  return {
    method: method.toUpperCase(),
    path,
    summary: declared.summary ?? "",
    parameters: declared.parameters ?? [],
    body: declared.requestBody?.content["application/json"]?.schema ?? null,
    responses: declared.responses,
    isSocket: "101" in declared.responses,
  };
}

export interface Field {
  name: string;
  type: string;
  isRequired: boolean;
  description: string;
}

/** The fields of an object, those of nested objects under `parent.field`. */
export function fieldsOf(schema: Schema, document: OpenApi, prefix = "", depth = 0): Field[] {
  const resolved = resolve(schema, document);
  return Object.entries(resolved.properties ?? {}).flatMap(([name, property]) => {
    const field = {
      name: prefix + name,
      type: typeOf(property, document),
      isRequired: (resolved.required ?? []).includes(name),
      description: property.description ?? "",
    };
    const nested = property.items ?? property;
    const suffix = property.items ? "[]." : ".";
    return depth < 2 ? [field, ...fieldsOf(nested, document, field.name + suffix, depth + 1)] : [field];
  });
}

function typeOf(schema: Schema, document: OpenApi): string {
  const resolved = resolve(schema, document);
  if (resolved.anyOf) return [...new Set(resolved.anyOf.map((option) => typeOf(option, document)))].join(" | ");
  if (resolved.enum) return resolved.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (resolved.const !== undefined) return JSON.stringify(resolved.const);
  if (resolved.items) return `${typeOf(resolved.items, document)}[]`;
  return resolved.type ?? "any";
}

function resolve(schema: Schema, document: OpenApi): Schema {
  const name = schema.$ref?.split("/").at(-1);
  return name === undefined ? schema : (document.components?.schemas?.[name] ?? {});
}

/** A value with the required fields of a schema, to begin with. */
export function exampleOf(schema: Schema, document: OpenApi): unknown {
  const resolved = resolve(schema, document);
  if (resolved.default !== undefined) return resolved.default;
  if (resolved.enum) return resolved.enum[0];
  if (resolved.anyOf) return exampleOf(resolved.anyOf[0] ?? {}, document);
  if (resolved.type === "boolean") return true;
  if (resolved.type === "integer" || resolved.type === "number") return 0;
  if (resolved.type === "array") return [];
  if (resolved.type === "string") return "Hello";
  const fields = Object.entries(resolved.properties ?? {}).filter(([name]) => (resolved.required ?? []).includes(name));
  return Object.fromEntries(fields.map(([name, property]) => [name, exampleOf(property, document)]));
}

/** The path, with its query, and the rest of a request with these values of its parameters. */
export function requestOf(operation: Operation, values: Record<string, string>, text: string) {
  let path = operation.path;
  const query = new URLSearchParams();
  const headers = new Headers();
  for (const { name, in: place } of operation.parameters) {
    const value = values[name] ?? "";
    if (place === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (value && place === "query") query.set(name, value);
    else if (value && place === "header") headers.set(name, value);
  }
  const init: RequestInit = { method: operation.method, headers, credentials: "same-origin" };
  if (operation.body) {
    headers.set("Content-Type", "application/json");
    init.body = text;
  }
  return { path: query.size ? `${path}?${query}` : path, init };
}
