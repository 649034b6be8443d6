/** A button that opens a menu. Arrow keys move in it, Escape closes it. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon, IconButton, type IconName } from "../icons.tsx";

export interface MenuItem {
  icon: IconName;
  text: string;
  testid: string;
  /** An address to open; otherwise `onPick` is called. */
  href?: string;
  isDangerous?: boolean;
  onPick?: () => void;
}

const GAP = 8;

export function Menu({ label, testid, items }: { label: string; testid: string; items: MenuItem[] }) {
  const [isOpen, setOpen] = useState(false);
  const frame = useRef<HTMLSpanElement>(null);
  const list = useRef<HTMLUListElement>(null);
  useLayoutEffect(() => {
    if (!isOpen) return;
    // Fixed, because the list of sessions would cut it off.
    const { style, offsetWidth, offsetHeight } = list.current!;
    const at = frame.current!.getBoundingClientRect();
    style.left = `${Math.max(GAP, Math.min(at.right - offsetWidth, innerWidth - offsetWidth - GAP))}px`;
    style.top = `${at.bottom + offsetHeight + GAP > innerHeight ? at.top - offsetHeight : at.bottom}px`;
    choices(list.current!)[0]?.focus();
  }, [isOpen]);
  useEffect(() => {
    if (!isOpen) return;
    const leave = (event: Event) => !frame.current?.contains(event.target as Element) && setOpen(false);
    addEventListener("pointerdown", leave);
    addEventListener("scroll", leave, true);
    return () => {
      removeEventListener("pointerdown", leave);
      removeEventListener("scroll", leave, true);
    };
  }, [isOpen]);
  const close = () => {
    setOpen(false);
    frame.current?.querySelector("button")?.focus();
  };
  const press = (event: KeyboardEvent) => {
    const all = choices(list.current!);
    const index = all.indexOf(document.activeElement as HTMLElement);
    const step = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Escape") (event.preventDefault(), event.stopPropagation(), close());
    else if (event.key === "Tab") setOpen(false);
    else if (step !== undefined) (event.preventDefault(), all.at(step % all.length)?.focus());
  };
  return (
    <span class="menu" ref={frame}>
      <IconButton
        name="more"
        label={label}
        testid={testid}
        aria-haspopup="menu"
        aria-expanded={isOpen}
        onClick={() => setOpen(!isOpen)}
      />
      {isOpen && (
        <ul role="menu" aria-label={label} ref={list} onKeyDown={press}>
          {items.map((item) => (
            <li key={item.testid} role="none">
              <Choice item={item} onPick={() => (close(), item.onPick?.())}>
                <Icon name={item.icon} /> {item.text}
              </Choice>
            </li>
          ))}
        </ul>
      )}
    </span>
  );
}

function Choice({ item, onPick, children }: { item: MenuItem; onPick: () => void; children: ComponentChildren }) {
  const shared = {
    role: "menuitem" as const,
    tabIndex: -1,
    class: item.isDangerous ? "dangerous" : "",
    "data-testid": item.testid,
  };
  return item.href ? (
    <a {...shared} href={item.href}>
      {children}
    </a>
  ) : (
    <button type="button" {...shared} onClick={onPick}>
      {children}
    </button>
  );
}

const choices = (list: HTMLElement): HTMLElement[] => [...list.querySelectorAll<HTMLElement>("[role=menuitem]")];
