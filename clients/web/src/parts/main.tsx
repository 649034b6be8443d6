/** The main column: one conversation and the message box. */

import { useEffect, useState } from "preact/hooks";
import { brand } from "../brand.ts";
import type { Conversation } from "../conversation.ts";
import { IconButton } from "../icons.tsx";
import { useObservable } from "../observable.ts";
import type { Me, Offer } from "../server.ts";
import { statusOf } from "../format.ts";
import { Composer } from "./composer.tsx";
import { ReachPill, REACH_TEXT, useReach } from "./connection.tsx";
import type { Source } from "./sources.tsx";
import { Transcript } from "./transcript.tsx";
import type { Uploads } from "./uploads.tsx";

interface MainProps {
  conversation: Conversation;
  /** The title of the conversation, if it has one. */
  title: string | null;
  offer: Offer | null;
  me: Me;
  uploads: Uploads;
  onMenu: () => void;
  onSource: (source: Source, from: HTMLElement) => void;
}

export function Main({ conversation, title, offer, me, uploads, onMenu, onSource }: MainProps) {
  useObservable(conversation);
  const [picked, setAgent] = useState<string | undefined>();
  const reach = useReach();
  const hasAgents = !!offer && offer.agents.length > 1;
  const agent = hasAgents
    ? (picked ?? (offer.agents.find((candidate) => candidate.is_default) ?? offer.agents[0])?.name)
    : undefined;
  const path = conversation.path;
  const running = conversation.running;
  const last = path.findLast((entry) => entry.phase === "running" || entry.phase === "ended");
  const name = title ?? conversation.session?.title ?? path[0]?.message ?? "";
  const isRunning = last?.phase === "running";
  useEffect(() => {
    document.title = `${isRunning ? "… " : ""}${name ? `${name} · ` : ""}${brand.name}`;
  }, [name, isRunning]);
  const ask = (message: string) => void conversation.send(message, agent);
  return (
    <main class="main">
      <header class="main-head">
        <IconButton name="menu" label="Conversations" class="only-narrow" testid="menu" onClick={onMenu} />
        {name && path.length > 0 ? (
          <h1 class="title" data-testid="title">
            {name}
          </h1>
        ) : (
          <span class="title" />
        )}
        <ReachPill reach={reach} />
      </header>
      <Transcript
        conversation={conversation}
        hasDocuments={!!offer?.takes_documents}
        hasAgents={hasAgents}
        mayDecide={me.scopes.includes("approve")}
        onAsk={ask}
        onSource={onSource}
      />
      <div class="dock">
        <Composer
          offer={offer}
          agent={agent}
          isBusy={conversation.isBusy}
          isAnswering={running !== undefined}
          isStopping={!!running?.isStopping}
          uploads={uploads}
          focusKey={conversation.sessionId ?? "new"}
          onAgent={setAgent}
          onSend={ask}
          onStop={() => running && void conversation.stop(running)}
        />
      </div>
      <div class="unseen" role="status" data-testid="status">
        {REACH_TEXT[reach] || (last ? statusOf(last.view) : "")}
      </div>
    </main>
  );
}
