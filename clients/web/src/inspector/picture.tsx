/** The timeline of a turn: phases, one bar per step, a token histogram, and hatched silences. */

import { useEffect, useRef, useState } from "preact/hooks";
import { count, duration } from "../format.ts";
import type { Span, Timing } from "./timing.ts";

const LEFT = 8;
const ROW = 24;
const TOP = 30;
const HILLS = 44;
const BIN = 5;

export function Picture({ timing, at, onPick }: { timing: Timing; at: number; onPick: (time: number) => void }) {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(900);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(280, entry!.contentRect.width)));
    watch.observe(frame.current!);
    return () => watch.disconnect();
  }, []);
  const total = Math.max(1, timing.total);
  const x = (time: number) => LEFT + (time / total) * (width - 2 * LEFT);
  const stepsTop = TOP + ROW + 6;
  const hillsTop = stepsTop + timing.steps.length * ROW + 18;
  const bottom = hillsTop + (timing.tokens.length ? HILLS : 0) + 6;
  const pick = (event: PointerEvent) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const { left } = frame.current!.getBoundingClientRect();
    onPick(Math.max(0, Math.min(1, (event.clientX - left - LEFT) / (width - 2 * LEFT))) * total);
  };
  return (
    <div class="picture" ref={frame}>
      <svg
        width={width}
        height={bottom + 4}
        role="img"
        aria-label={describe(timing)}
        data-testid="picture"
        onPointerDown={pick}
        onPointerMove={pick}
      >
        <defs>
          <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <path d="M0 0V6" class="hatch" />
          </pattern>
        </defs>
        {ticks(total, width).map((time) => (
          <g key={time} class="tick">
            <path d={`M${x(time)} ${TOP - 8}V${bottom}`} />
            <text x={x(time) + 4} y={14}>
              {time ? duration(time) : "start"}
            </text>
          </g>
        ))}
        {timing.gaps.map(({ from, to }) => (
          <g key={from} class="gap">
            <rect x={x(from)} y={TOP} width={Math.max(1, x(to) - x(from))} height={bottom - TOP} fill="url(#hatch)" />
            {x(to) - x(from) > 64 && (
              <text x={(x(from) + x(to)) / 2} y={bottom - 4} text-anchor="middle">
                {duration(to - from)} silent
              </text>
            )}
          </g>
        ))}
        {timing.phases.map((span) => (
          <Bar key={span.name} span={span} x={x} y={TOP} width={width} isPhase />
        ))}
        {timing.steps.map((span, row) => (
          <Bar key={row} span={span} x={x} y={stepsTop + row * ROW} width={width} />
        ))}
        <path class="hills" d={hills(timing.tokens, x, width, hillsTop + HILLS)} />
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
        <path class="cursor" d={`M${x(at)} ${TOP - 10}V${bottom}`} />
        <circle class="cursor-head" cx={x(at)} cy={TOP - 10} r={4.5} />
      </svg>
    </div>
  );
}

function Bar({
  span,
  x,
  y,
  width,
  isPhase,
}: {
  span: Span;
  x: (time: number) => number;
  y: number;
  width: number;
  isPhase?: boolean;
}) {
  const from = x(span.from);
  const wide = Math.max(isPhase ? 2 : 4, x(span.to) - from);
  const text = span.to - span.from >= 1 ? `${span.name} · ${duration(span.to - span.from)}` : span.name;
  const room = text.length * 6.6 + 12;
  const isInside = wide > room;
  const isLeft = !isInside && from + wide + room > width && from > room;
  if (isPhase && !isInside)
    return <rect class={`bar phase ${span.kind}`} x={from} y={y} width={wide} height={ROW - 5} rx={4} />;
  return (
    <g>
      <rect
        class={`bar ${isPhase ? "phase" : ""} ${span.kind} ${span.isBad ? "bad" : ""} ${span.isOpen ? "open" : ""}`}
        x={from}
        y={y}
        width={wide}
        height={ROW - 5}
        rx={4}
      />
      <text
        class={`bar-text ${isInside ? "inside" : ""} ${span.kind}`}
        x={isInside ? from + 7 : isLeft ? from - 6 : from + wide + 6}
        y={y + 13.5}
        text-anchor={isLeft ? "end" : "start"}
      >
        {clip(
          text,
          isInside ? text.length : isLeft ? text.length : Math.max(8, Math.floor((width - from - wide - 14) / 6.6)),
        )}
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

/** Returns the path of the token histogram. */
function hills(tokens: readonly number[], x: (time: number) => number, width: number, base: number): string {
  if (!tokens.length) return "";
  const bins = new Array<number>(Math.ceil(width / BIN) + 1).fill(0);
  for (const time of tokens) bins[Math.floor(x(time) / BIN)]!++;
  const highest = Math.max(...bins);
  return bins
    .map((number, index) =>
      number ? `M${index * BIN} ${base}v${(-number / highest) * (HILLS - 6)}h${BIN - 1}V${base}z` : "",
    )
    .join("");
}

function describe({ total, firstToken, steps, tokens, gaps }: Timing): string {
  const parts = [`The turn took ${duration(total)}`, count(steps.length, "step"), count(tokens.length, "token")];
  if (firstToken !== null) parts.push(`the first token after ${duration(firstToken)}`);
  if (gaps[0]) parts.push(`the longest silence ${duration(gaps[0].to - gaps[0].from)}`);
  return parts.join(", ");
}
