/** The brand of this server, which it writes into the page's head. */

interface Brand {
  name: string;
  logo?: string;
  welcome?: string;
  starters?: string[];
}

const meta = globalThis.document?.querySelector<HTMLMetaElement>("meta[name=turnwire-brand]");

export const brand: Brand = meta ? (JSON.parse(meta.content) as Brand) : { name: "Turnwire" };
