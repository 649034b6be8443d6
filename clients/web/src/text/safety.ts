/**
 * Sanitizing the text of models and documents: nothing in it runs, and nothing is fetched from other origins.
 *
 * Only the elements of Markdown and a few harmless ones stay. An image of another origin would send the data in its
 * address to that origin, so it becomes a link.
 */

import DOMPurify from "dompurify";

const TAGS =
  "a abbr b blockquote br caption code dd del details dfn div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary sup table tbody td tfoot th thead tr u ul var".split(
    " ",
  );
const ATTRIBUTES = [
  "href",
  "src",
  "alt",
  "title",
  "start",
  "colspan",
  "rowspan",
  "align",
  "open",
  "data-cite",
  "data-lang",
  "data-maths",
  "data-task",
];
const PICTURE = /^data:image\/(?:png|jpe?g|gif|webp|avif);/i;

/** The origin of this script. It is the page's own, except for the widget, which must not call its host page's server. */
const HERE = new URL(import.meta.url).origin;

const purify = DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  // In the hook, because an image is fetched as soon as it is in the page.
  if (node.nodeName === "IMG") restrictImage(node as HTMLImageElement);
});

export function safeFragment(html: string): DocumentFragment {
  const fragment = purify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|data:image\/|[^a-z]|[a-z+.-]+(?:[^a-z+.\-:]|$))/i,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const link of fragment.querySelectorAll("a")) restrictLink(link);
  return fragment;
}

function restrictImage(image: HTMLImageElement): void {
  const source = image.getAttribute("src") ?? "";
  if (PICTURE.test(source)) return;
  // A relative address has no meaning on this page: only the alternative text is shown.
  const address = /^(?:https?:)?\//i.test(source) ? parsed(source) : null;
  if (address?.origin === HERE) return;
  image.removeAttribute("src");
  if (!address) return image.replaceWith(image.alt);
  const link = image.ownerDocument.createElement("a");
  link.href = address.href;
  link.textContent = image.alt || "image";
  image.replaceWith(link);
}

/** Opens links in a new tab without a referrer, and shows their host. */
function restrictLink(link: HTMLAnchorElement): void {
  const written = link.getAttribute("href") ?? "";
  const address = /^(?:https?:|mailto:)/i.test(written) ? parsed(written) : null;
  if (!address) {
    // A relative address has no meaning on this page: only the text stays.
    link.removeAttribute("href");
    return;
  }
  link.rel = "noopener noreferrer nofollow";
  link.target = "_blank";
  const host = address.host;
  if (host && !(link.textContent ?? "").includes(host)) {
    const shown = link.ownerDocument.createElement("span");
    shown.className = "host";
    shown.textContent = host;
    link.append(shown);
  }
}

function parsed(address: string): URL | null {
  try {
    return new URL(address, location.href);
  } catch {
    return null;
  }
}
