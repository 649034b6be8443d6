import { HttpAgent } from "@ag-ui/client";
import { defer, mergeMap } from "rxjs";

/** An agent whose chat begins with the messages that the server has: after a reload, too. */
export class ThreadAgent extends HttpAgent {
  connect({ threadId, runId }) {
    return defer(async () => {
      const response = await fetch(`${this.url}?threadId=${encodeURIComponent(threadId)}`, { headers: this.headers });
      if (!response.ok && response.status !== 404) throw new Error(`The server answered ${response.status}`);
      const messages = response.ok ? (await response.json()).messages : []; // 404: the thread is new.
      const run = { threadId, runId };
      return [{ type: "RUN_STARTED", ...run }, { type: "MESSAGES_SNAPSHOT", messages }, { type: "RUN_FINISHED", ...run }];
    }).pipe(mergeMap((events) => events));
  }
}
