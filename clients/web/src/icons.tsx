/** Icons. They are decorative: every icon has a text or label beside it. */

import { brand } from "./brand.ts";

const PATHS = {
  plus: "M10 4v12M4 10h12",
  search: "M9 15A6 6 0 1 0 9 3a6 6 0 0 0 0 12zM17 17l-3.8-3.8",
  review: "M4 10.5l4 4 8-9",
  tool: "M12.5 3.5a4 4 0 0 0-4.9 5.2L3 13.3V17h3.7l4.6-4.6a4 4 0 0 0 5.2-4.9L13.8 10 10 6.2z",
  handoff: "M4 10h12M11 5l5 5-5 5",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  edit: "M4 16l1-4 8-8 3 3-8 8zM12 5l3 3",
  trash: "M4 6h12M8 6V4h4v2M6 6l1 11h6l1-11",
  copy: "M7 7V4h9v9h-3M4 7h9v9H4z",
  again: "M16 10a6 6 0 1 1-2-4.5M16 3v4h-4",
  clip: "M16.5 9.2l-6.6 6.6a4.2 4.2 0 0 1-6-6l6.9-6.9a2.8 2.8 0 0 1 4 4l-6.9 6.9a1.4 1.4 0 0 1-2-2l6.2-6.2",
  close: "M5 5l10 10M15 5L5 15",
  menu: "M3 6h14M3 10h14M3 14h14",
  down: "M10 4v12M5 11l5 5 5-5",
  chevron: "M7 5l5 5-5 5",
  left: "M12 5l-5 5 5 5",
  sun: "M10 13a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.3l1.4 1.4M14.3 14.3l1.4 1.4M4.3 15.7l1.4-1.4M14.3 5.7l1.4-1.4",
  moon: "M16 11.5A6.5 6.5 0 0 1 8.5 4a6.5 6.5 0 1 0 7.5 7.5z",
  book: "M4 4h5a2 2 0 0 1 2 2v10a2 2 0 0 0-2-2H4zM16 4h-3a2 2 0 0 0-2 2v10a2 2 0 0 1 2-2h3z",
  wave: "M2 10h3l2-5 4 10 3-7 1 2h3",
  play: "M6 4l10 6-10 6z",
  pause: "M7 5v10M13 5v10",
  clock: "M10 17a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM10 6v4l3 2",
  out: "M8 4H4v12h4M9 10h8M13 6l4 4-4 4",
  more: "M4.5 10h.01M10 10h.01M15.5 10h.01",
  good: "M6 9l3-6c1.5 0 2 1 2 2v3h4.2a1.3 1.3 0 0 1 1.3 1.6l-1.3 5A1.8 1.8 0 0 1 13.5 16H6zM6 9H3.5v7H6",
  bad: "M6 11l3 6c1.5 0 2-1 2-2v-3h4.2a1.3 1.3 0 0 0 1.3-1.6l-1.3-5A1.8 1.8 0 0 0 13.5 4H6zM6 11H3.5V4H6",
  share: "M10 12V3M6.5 6L10 2.5 13.5 6M5 9H4v8h12V9h-1",
  save: "M10 3v9M6.5 8.5L10 12l3.5-3.5M4 13v4h12v-4",
  hand: "M10 3v8M10 14v2",
  thought: "M10 3a5 5 0 0 1 3 9v2H7v-2a5 5 0 0 1 3-9zM8 17h4",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Logo() {
  if (brand.logo) return <img class="logo" src={new URL(brand.logo, import.meta.url).href} alt="" />;
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <path d="M5 10h15a6 6 0 0 1 0 12h-7" />
      <circle cx="7" cy="10" r="3.4" />
      <circle class="second" cx="11" cy="22" r="3.4" />
    </svg>
  );
}

interface Labelled {
  name: IconName;
  label: string;
  onClick?: (event: MouseEvent) => void;
  class?: string;
  disabled?: boolean;
  testid?: string;
  "aria-pressed"?: boolean;
  "aria-expanded"?: boolean;
  "aria-haspopup"?: "menu";
}

export function IconButton({ name, label, testid, ...rest }: Labelled) {
  return (
    <button
      type="button"
      {...rest}
      class={`icon-button ${rest.class ?? ""}`}
      aria-label={label}
      title={label}
      data-testid={testid}
    >
      <Icon name={name} />
    </button>
  );
}
