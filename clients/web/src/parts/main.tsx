/** The main column: one conversation and the message box. */

import type { Attachment } from "../../../js/src/index.ts";
import { useEffect, useState } from "preact/hooks";
import { brand } from "../brand.ts";
import type { Conversation } from "../conversation.ts";
import type { OnBusy } from "../entries.ts";
import { useObservable } from "../observable.ts";
import type { Me, Offer } from "../server.ts";
import { statusOf } from "../format.ts";
import { Composer } from "./composer.tsx";
import { REACH_TEXT, useReach } from "./connection.tsx";
import { Header } from "./header.tsx";
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
  onRename: (title: string) => void;
  onDelete: () => void;
  onSource: (source: Source, from: HTMLElement) => void;
}

export function Main(props: MainProps) {
  const { conversation, title, offer, me, uploads, onSource } = props;
  useObservable(conversation);
  const [picked, setPicked] = useState<{ agent: string; conversation: Conversation } | null>(null);
  const reach = useReach();
  const hasAgents = !!offer && offer.agents.length > 1;
  const wanted =
    (picked?.conversation === conversation ? picked.agent : undefined) ?? conversation.lastAgent ?? picked?.agent;
  const agent = hasAgents
    ? (offer.agents.find(({ name }) => name === wanted) ?? offer.agents.find(({ is_default }) => is_default))?.name
    : undefined;
  const path = conversation.path;
  const running = conversation.running;
  const last = path.findLast((entry) => entry.phase === "running" || entry.phase === "ended");
  const name = title ?? conversation.session?.title ?? path[0]?.message ?? "";
  const isRunning = last?.phase === "running";
  useEffect(() => {
    document.title = `${isRunning ? "… " : ""}${name ? `${name} · ` : ""}${brand.name}`;
  }, [name, isRunning]);
  const pick = (name: string) => setPicked({ agent: name, conversation });
  const ask = (message: string, by = agent, onBusy?: OnBusy, attachments?: Attachment[]) => {
    if (by) pick(by);
    void conversation.send(message, by, undefined, onBusy, attachments);
  };
  return (
    <main class="main">
      <Header
        conversation={conversation}
        title={name}
        agent={hasAgents ? conversation.lastAgent : undefined}
        reach={reach}
        onMenu={props.onMenu}
        onRename={props.onRename}
        onDelete={props.onDelete}
      />
      <Transcript
        conversation={conversation}
        offer={offer}
        agent={agent}
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
          conversation={conversation}
          onAgent={pick}
          onSend={(message, onBusy, attachments) => ask(message, agent, onBusy, attachments)}
          onStop={() => running && void conversation.stop(running)}
        />
      </div>
      <div class="unseen" role="status" data-testid="status">
        {REACH_TEXT[reach] || (last ? statusOf(last.view) : "")}
      </div>
    </main>
  );
}
