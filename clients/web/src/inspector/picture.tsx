/** The timeline of a turn: phases, one bar per step, a histogram of the answer's pieces, and hatched silences. */

import { useEffect, useId, useRef, useState } from "preact/hooks";
import { count, duration } from "../format.ts";
import type { Phase, Step, Timing } from "./timing.ts";

const PAD = 8;
const ROW = 26;
const BAR = 19;
const TOP = 30;
const HILLS = 44;
const BIN = 5;
const CHARACTER = 6.6;
const INDENT = 14;
/** Narrower pictures have no column of names; the names are beside the bars. */
const NAMES_FROM = 640;
const NAMES = 210;

interface Props {
  timing: Timing;
  /** The time at the end of the picture, if it is not the turn's own: two turns have the same scale. */
  scale?: number;
  at?: number;
  onPick?: (time: number) => void;
  selected?: Step | null;
  onSelect?: (step: Step) => void;
}

export function Picture({ timing, scale, at, onPick, selected, onSelect }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const hatch = useId();
  const [width, setWidth] = useState(900);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(280, entry!.contentRect.width)));
    watch.observe(frame.current!);
    return () => watch.disconnect();
  }, []);
  const total = Math.max(1, scale ?? timing.total);
  const hasNames = width >= NAMES_FROM && timing.steps.length > 0;
  const left = hasNames ? NAMES : PAD;
  const room = width - left - PAD;
  const x = (time: number) => left + (time / total) * room;
  const stepsTop = TOP + ROW + 6;
  const hillsTop = stepsTop + timing.steps.length * ROW + 18;
  const bottom = hillsTop + (timing.pieces.length ? HILLS : 0) + 6;
  const pick = (event: PointerEvent) => {
    if (!onPick || (event.type === "pointermove" && !event.buttons)) return;
    const box = frame.current!.getBoundingClientRect();
    onPick(Math.max(0, Math.min(1, (event.clientX - box.left - left) / room)) * total);
  };
  return (
    <div class={`picture ${onPick ? "scrubbed" : ""}`} ref={frame}>
      <svg
        width={width}
        height={bottom + 4}
        role="group"
        aria-label={describe(timing)}
        data-testid="picture"
        onPointerDown={pick}
        onPointerMove={pick}
      >
        <defs>
          <pattern id={hatch} width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <path d="M0 0V6" class="hatch" />
          </pattern>
        </defs>
        {ticks(total, room).map((time) => (
          <g key={time} class="tick">
            <path d={`M${x(time)} ${TOP - 8}V${bottom}`} />
            <text x={x(time) + 4} y={14}>
              {time ? duration(time) : "start"}
            </text>
          </g>
        ))}
        {timing.gaps.map(({ from, to }) => (
          <g key={from} class="gap">
            <rect x={x(from)} y={TOP} width={Math.max(1, x(to) - x(from))} height={bottom - TOP} fill={`url(#${hatch})`} />
            {x(to) - x(from) > 64 && (
              <text x={(x(from) + x(to)) / 2} y={bottom - 4} text-anchor="middle">
                {duration(to - from)} silent
              </text>
            )}
          </g>
        ))}
        {timing.phases.map((phase) => (
          <PhaseBar key={phase.name} phase={phase} x={x} />
        ))}
        {timing.steps.map((step, row) => (
          <StepRow
            key={`${step.kind} ${step.first} ${row}`}
            step={step}
            x={x}
            y={stepsTop + row * ROW}
            width={width}
            hasNames={hasNames}
            isSelected={!!selected && isSame(selected, step)}
            onSelect={onSelect}
          />
        ))}
        <path class="hills" d={hills(timing.pieces, x, width, hillsTop + HILLS)} />
        {timing.firstToken !== null && (
          <g class="first">
            <path d={`M${x(timing.firstToken)} ${TOP - 8}V${bottom}`} />
            <text
              x={x(timing.firstToken) + (x(timing.firstToken) > width - 150 ? -6 : 6)}
              y={hillsTop - 4}
              text-anchor={x(timing.firstToken) > width - 150 ? "end" : "start"}
            >
              first token {duration(timing.firstToken)}
            </text>
          </g>
        )}
        {at !== undefined && (
          <>
            <path class="cursor" d={`M${x(at)} ${TOP - 10}V${bottom}`} />
            <circle class="cursor-head" cx={x(at)} cy={TOP - 10} r={4.5} />
          </>
        )}
      </svg>
    </div>
  );
}

/** Returns true for the same step in an older or newer fold of the log. */
export const isSame = (first: Step, other: Step): boolean =>
  first.kind === other.kind && first.first === other.first && first.id === other.id;

const KINDS = {
  model: "model call",
  reasoning: "reasoning",
  agent: "sub-agent",
  tool: "tool call",
  search: "search",
  review: "review",
  waiting: "wait for a person",
} as const;

export const kindText = (step: Step): string => KINDS[step.kind];

export const stateText = (step: Step): string =>
  step.isVoid ? "taken back by a restart" : step.isOpen ? "running" : step.isBad ? "failed" : "";

function PhaseBar({ phase, x }: { phase: Phase; x: (time: number) => number }) {
  const from = x(phase.from);
  const wide = Math.max(2, x(phase.to) - from);
  const text = `${phase.name} · ${duration(phase.to - phase.from)}`;
  return (
    <g>
      <rect class={`bar phase ${phase.kind}`} x={from} y={TOP} width={wide} height={BAR} rx={4} />
      {wide > text.length * CHARACTER + 12 && (
        <text class="bar-text inside" x={from + 7} y={TOP + 13.5}>
          {text}
        </text>
      )}
    </g>
  );
}

interface StepRowProps {
  step: Step;
  x: (time: number) => number;
  y: number;
  width: number;
  hasNames: boolean;
  isSelected: boolean;
  onSelect?: (step: Step) => void;
}

function StepRow({ step, x, y, width, hasNames, isSelected, onSelect }: StepRowProps) {
  const from = x(step.from);
  const wide = Math.max(4, x(step.to) - from);
  const took = step.to - step.from >= 1 ? duration(step.to - step.from) : "";
  const indent = step.depth * INDENT;
  const name = `${hasNames ? "" : "› ".repeat(step.depth)}${step.name}`;
  const text = hasNames ? took : took ? `${name} · ${took}` : name;
  const needed = text.length * CHARACTER + 12;
  const isInside = wide > needed;
  const isLeft = !isInside && from + wide + needed > width && from > needed;
  const available = isLeft ? from - 12 : width - from - wide - 14;
  const states = `${step.isBad ? "bad" : ""} ${step.isOpen ? "open" : ""} ${step.isVoid ? "void" : ""}`;
  const label = [step.name, kindText(step), took, stateText(step)].filter(Boolean).join(", ");
  const select = (event: Event) => {
    event.stopPropagation();
    onSelect?.(step);
  };
  const action = onSelect && {
    role: "button" as const,
    tabindex: 0, // Not `tabIndex`: attributes of SVG are case-sensitive.
    "aria-pressed": isSelected,
    "aria-label": label,
    onPointerDown: (event: Event) => event.stopPropagation(),
    onClick: select,
    onKeyDown: (event: KeyboardEvent) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      select(event);
    },
  };
  return (
    <g class={`step ${isSelected ? "selected" : ""}`} data-testid="step-bar" data-kind={step.kind} {...action}>
      <title>{label}</title>
      {/* The whole row is the pointer's target. */}
      <rect class="row" x={0} y={y - 3} width={width} height={ROW} />
      {hasNames && (
        <>
          {step.depth > 0 && <path class="branch" d={`M${PAD + indent - 8} ${y - 5}v15h5`} />}
          <text class="step-name" x={PAD + indent} y={y + 13.5}>
            {clip(step.name, Math.floor((NAMES - PAD - indent - 14) / CHARACTER))}
          </text>
        </>
      )}
      <rect class={`bar ${step.kind} ${states}`} x={from} y={y} width={wide} height={BAR} rx={4} />
      <text
        class={`bar-text ${isInside ? "inside" : ""} ${step.kind} ${states}`}
        x={isInside ? from + 7 : isLeft ? from - 6 : from + wide + 6}
        y={y + 13.5}
        text-anchor={isLeft ? "end" : "start"}
      >
        {isInside ? text : clip(text, Math.max(3, Math.floor(available / CHARACTER)))}
      </text>
    </g>
  );
}

const clip = (text: string, limit: number): string => (text.length > limit ? `${text.slice(0, limit - 1)}…` : text);

function ticks(total: number, width: number): number[] {
  const minimum = total / Math.max(2, Math.floor(width / 110));
  const unit = 10 ** Math.floor(Math.log10(minimum));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= minimum)!;
  return Array.from({ length: Math.floor((total * 0.97) / step) + 1 }, (_, index) => index * step);
}

/** Returns the path of the histogram. */
function hills(pieces: readonly number[], x: (time: number) => number, width: number, base: number): string {
  if (!pieces.length) return "";
  const bins = new Array<number>(Math.ceil(width / BIN) + 1).fill(0);
  for (const time of pieces) bins[Math.floor(x(time) / BIN)]!++;
  const highest = Math.max(...bins);
  return bins
    .map((number, index) =>
      number ? `M${index * BIN} ${base}v${(-number / highest) * (HILLS - 6)}h${BIN - 1}V${base}z` : "",
    )
    .join("");
}

function describe({ total, firstToken, steps, pieces, gaps }: Timing): string {
  const parts = [`The turn took ${duration(total)}`, count(steps.length, "step"), count(pieces.length, "piece")];
  if (firstToken !== null) parts.push(`the first token after ${duration(firstToken)}`);
  if (gaps[0]) parts.push(`the longest silence ${duration(gaps[0].to - gaps[0].from)}`);
  return parts.join(", ");
}
