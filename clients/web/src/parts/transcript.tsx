/** The conversation, scrolled along with what is written as long as one reads at its end. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Conversation } from "../conversation.ts";
import { copyCode } from "../copying.ts";
import { Icon } from "../icons.tsx";
import { type Peek, PeekCard, type Source, sourceOfChip } from "./sources.tsx";
import { TurnItem } from "./turn.tsx";
import { Welcome } from "./welcome.tsx";

interface TranscriptProps {
  conversation: Conversation;
  hasDocuments: boolean;
  hasAgents: boolean;
  mayDecide: boolean;
  onAsk: (message: string) => void;
  onSource: (source: Source, from: HTMLElement) => void;
}

const NEAR = 60;
/** So many turns are shown at first: a long conversation must not take long to open. */
const AT_ONCE = 20;

export function Transcript(props: TranscriptProps) {
  const { conversation, hasDocuments, hasAgents, mayDecide, onAsk, onSource } = props;
  const path = conversation.path;
  const scroller = useRef<HTMLDivElement>(null);
  const isFollowing = useRef(true);
  const [isAway, setAway] = useState(false);
  const [peek, setPeek] = useState<Peek | null>(null);
  const leaving = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const [most, setMost] = useState(AT_ONCE);
  const earlier = Math.max(0, path.length - most);
  const lastKey = path.at(-1)?.key;

  const toEnd = () => {
    const element = scroller.current;
    if (element) element.scrollTop = element.scrollHeight;
  };
  useLayoutEffect(() => {
    isFollowing.current = true;
    setAway(false);
  }, [conversation, lastKey]);
  useLayoutEffect(() => {
    if (isFollowing.current) toEnd();
  });
  useEffect(() => {
    // What opens, folds or is laid out late moves the end too.
    const watch = new ResizeObserver(() => isFollowing.current && toEnd());
    watch.observe(scroller.current!.firstElementChild!);
    watch.observe(scroller.current!);
    return () => watch.disconnect();
  }, []);
  const showEarlier = () => {
    const element = scroller.current!;
    const left = element.scrollHeight - element.scrollTop;
    isFollowing.current = false;
    setMost(most + AT_ONCE);
    requestAnimationFrame(() => (element.scrollTop = element.scrollHeight - left));
  };
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = scroller.current!;
    isFollowing.current = scrollHeight - scrollTop - clientHeight < NEAR;
    setAway(!isFollowing.current);
    setPeek(null);
  };

  const chipOf = (event: Event): HTMLElement | null =>
    (event.target as Element).closest<HTMLElement>("[data-cite], [data-source]");
  const sourceFor = (chip: HTMLElement): Source | undefined => {
    const turnId = chip.closest<HTMLElement>("[data-turn-id]")?.dataset.turnId;
    const entry = path.find((one) => one.turnId === turnId);
    return entry && sourceOfChip(chip, entry.view);
  };
  const look = (event: Event) => {
    const chip = chipOf(event);
    if (!chip?.dataset.cite) return;
    clearTimeout(leaving.current);
    const source = sourceFor(chip);
    if (source) setPeek({ chip, source });
  };
  const leave = () => {
    leaving.current = setTimeout(() => setPeek(null), 160);
  };
  const open = ({ chip, source }: Peek) => {
    setPeek(null);
    onSource(source, chip);
    // The document takes room away: what was clicked shall not move out of sight.
    setTimeout(() => chip.scrollIntoView({ block: "nearest" }), 50);
  };
  const click = (event: MouseEvent) => {
    const copy = (event.target as Element).closest<HTMLElement>("[data-copy]");
    if (copy) return void copyCode(copy);
    // Who unfolds something wants to read it, and not to be taken to the end.
    if ((event.target as Element).closest("summary, [aria-expanded]")) isFollowing.current = false;
    const chip = chipOf(event);
    const source = chip && sourceFor(chip);
    if (!chip || !source) return;
    if (chip.dataset.cite && (event as PointerEvent).pointerType === "touch" && peek?.chip !== chip) {
      clearTimeout(leaving.current);
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
        onPointerOver={(event) => event.pointerType === "mouse" && look(event)}
        onPointerOut={(event) => chipOf(event) && leave()}
        onFocusIn={(event) => chipOf(event)?.matches(":focus-visible") && look(event)}
        onFocusOut={(event) => chipOf(event) && leave()}
        onKeyDown={(event) => event.key === "Escape" && peek && (event.stopPropagation(), setPeek(null))}
      >
        <div class="transcript" role="log" aria-live="off" aria-label="Conversation" data-testid="transcript">
          {!path.length && !conversation.isLoading && !conversation.problem && (
            <Welcome hasDocuments={hasDocuments} onAsk={onAsk} />
          )}
          {conversation.isLoading && !path.length && <div class="skeleton" aria-label="Loading" />}
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
                place={siblings.indexOf(entry)}
                places={siblings.length}
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
            isFollowing.current = true;
            toEnd();
          }}
        >
          <Icon name="down" /> Jump to latest
        </button>
      )}
      {peek && (
        <PeekCard peek={peek} onStay={() => clearTimeout(leaving.current)} onLeave={leave} onOpen={() => open(peek)} />
      )}
    </div>
  );
}
