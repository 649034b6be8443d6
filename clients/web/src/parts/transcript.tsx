/** The conversation. It scrolls with new text while the reader is at its end; a quoted answer is read from its start. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Conversation } from "../conversation.ts";
import { copyCode, wrapCode } from "../clipboard.ts";
import { Icon } from "../icons.tsx";
import type { Offer } from "../server.ts";
import { Skeleton } from "./skeleton.tsx";
import { type Peek, PeekCard, type Source, sourceOfChip } from "./sources.tsx";
import { TurnItem } from "./turn.tsx";
import { Welcome } from "./welcome.tsx";

interface TranscriptProps {
  conversation: Conversation;
  offer: Offer | null;
  /** The agent that will answer the next message. */
  agent: string | undefined;
  hasAgents: boolean;
  mayDecide: boolean;
  onAsk: (message: string, agent?: string) => void;
  onSource: (source: Source, from: HTMLElement) => void;
}

const NEAR = 60;
/** The number of turns shown at first, so that a long conversation opens fast. */
const PAGE_SIZE = 20;

export function Transcript(props: TranscriptProps) {
  const { conversation, offer, agent, hasAgents, mayDecide, onAsk, onSource } = props;
  const path = conversation.path;
  const scroller = useRef<HTMLDivElement>(null);
  const isFollowing = useRef(true);
  // The welcome is read from its start.
  const hasTurns = useRef(false);
  hasTurns.current = path.length > 0;
  const [isAway, setAway] = useState(false);
  const [peek, setPeek] = useState<Peek | null>(null);
  const hideTimer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const [limit, setLimit] = useState(PAGE_SIZE);
  const earlier = Math.max(0, path.length - limit);
  const lastKey = path.at(-1)?.key;
  // Quotations are there all at once, so nobody has read their start while they were written.
  const isQuoted = ["extractive", "not_found"].includes(path.at(-1)?.view.mode ?? "");
  const startsAtQuestion = useRef(false);

  const toEnd = () => {
    const element = scroller.current;
    if (element && hasTurns.current) element.scrollTop = target(element);
  };
  const target = (element: HTMLElement): number => {
    const end = element.scrollHeight - element.clientHeight;
    const last = element.firstElementChild!.lastElementChild;
    if (!startsAtQuestion.current || !last) return end;
    return Math.min(end, element.scrollTop + last.getBoundingClientRect().top - element.getBoundingClientRect().top);
  };
  useLayoutEffect(() => {
    isFollowing.current = true;
    setAway(false);
  }, [conversation, lastKey]);
  useLayoutEffect(() => {
    startsAtQuestion.current = isQuoted && isFollowing.current;
  }, [conversation, lastKey, isQuoted]);
  useLayoutEffect(() => {
    if (isFollowing.current) toEnd();
  });
  useEffect(() => {
    // Unfolding and late layout move the end, too.
    const watch = new ResizeObserver(() => isFollowing.current && toEnd());
    watch.observe(scroller.current!.firstElementChild!);
    watch.observe(scroller.current!);
    return () => watch.disconnect();
  }, []);
  const showEarlier = () => {
    const element = scroller.current!;
    const distance = element.scrollHeight - element.scrollTop;
    isFollowing.current = false;
    setLimit(limit + PAGE_SIZE);
    requestAnimationFrame(() => (element.scrollTop = element.scrollHeight - distance));
  };
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = scroller.current!;
    // The reader has scrolled, not this page.
    if (Math.abs(scrollTop - target(scroller.current!)) > 2) startsAtQuestion.current = false;
    isFollowing.current = startsAtQuestion.current || scrollHeight - scrollTop - clientHeight < NEAR;
    setAway(scrollHeight - scrollTop - clientHeight >= NEAR);
    setPeek(null);
  };

  const chipOf = (event: Event): HTMLElement | null =>
    (event.target as Element).closest<HTMLElement>("[data-cite], [data-source]");
  const sourceFor = (chip: HTMLElement): Source | undefined => {
    const turnId = chip.closest<HTMLElement>("[data-turn-id]")?.dataset.turnId;
    const entry = path.find((item) => item.turnId === turnId);
    return entry && sourceOfChip(chip, entry.view);
  };
  const showPeek = (event: Event) => {
    const chip = chipOf(event);
    if (!chip?.dataset.cite) return;
    clearTimeout(hideTimer.current);
    const source = sourceFor(chip);
    if (source) setPeek({ chip, source });
  };
  const hidePeek = () => {
    hideTimer.current = setTimeout(() => setPeek(null), 160);
  };
  const open = ({ chip, source }: Peek) => {
    setPeek(null);
    onSource(source, chip);
    // The panel narrows the column: keep the clicked chip visible.
    setTimeout(() => chip.scrollIntoView({ block: "nearest" }), 50);
  };
  const click = (event: MouseEvent) => {
    const copy = (event.target as Element).closest<HTMLElement>("[data-copy]");
    if (copy) return void copyCode(copy);
    const wrap = (event.target as Element).closest<HTMLElement>("[data-wrap]");
    if (wrap) return wrapCode(wrap);
    // Unfolding something stops the scrolling to the end.
    if ((event.target as Element).closest("summary, [aria-expanded]")) isFollowing.current = false;
    const chip = chipOf(event);
    const source = chip && sourceFor(chip);
    if (!chip || !source) return;
    if (chip.dataset.cite && (event as PointerEvent).pointerType === "touch" && peek?.chip !== chip) {
      clearTimeout(hideTimer.current);
      return setPeek({ chip, source });
    }
    open({ chip, source });
  };
  return (
    <div class="stage">
      <div
        class="scroller"
        ref={scroller}
        data-testid="scroller"
        onScroll={onScroll}
        onClick={click}
        onPointerOver={(event) => event.pointerType === "mouse" && showPeek(event)}
        onPointerOut={(event) => chipOf(event) && hidePeek()}
        onFocusIn={(event) => chipOf(event)?.matches(":focus-visible") && showPeek(event)}
        onFocusOut={(event) => chipOf(event) && hidePeek()}
        onKeyDown={(event) => event.key === "Escape" && peek && (event.stopPropagation(), setPeek(null))}
      >
        <div class="transcript" role="log" aria-live="off" aria-label="Conversation" data-testid="transcript">
          {!path.length && !conversation.isLoading && !conversation.problem && (
            <Welcome offer={offer} agent={agent} onAsk={onAsk} />
          )}
          {conversation.isLoading && !path.length && <Skeleton />}
          {conversation.problem && (
            <p role="alert" class="failure">
              {conversation.problem}
            </p>
          )}
          {earlier > 0 && (
            <button type="button" class="quiet" data-testid="earlier" onClick={showEarlier}>
              Show earlier turns ({earlier})
            </button>
          )}
          {path.slice(earlier).map((entry) => {
            const siblings = conversation.siblings(entry);
            return (
              <TurnItem
                key={entry.key}
                entry={entry}
                conversation={conversation}
                version={siblings.indexOf(entry)}
                versions={siblings.length}
                agentName={hasAgents ? ((entry.view.agent || entry.agent) ?? null) : null}
                mayDecide={mayDecide}
              />
            );
          })}
        </div>
      </div>
      {isAway && path.length > 0 && (
        <button
          type="button"
          class="latest"
          data-testid="latest"
          onClick={() => {
            startsAtQuestion.current = false;
            isFollowing.current = true;
            toEnd();
          }}
        >
          <Icon name="down" /> Jump to latest
        </button>
      )}
      {peek && (
        <PeekCard peek={peek} onStay={() => clearTimeout(hideTimer.current)} onLeave={hidePeek} onOpen={() => open(peek)} />
      )}
    </div>
  );
}
