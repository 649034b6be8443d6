/** Many turns on one WebSocket. */

import type { Decision, StartOptions } from "./answers.js";
import type { TurnHandle } from "./turn.js";

export interface SocketTurn extends Omit<TurnHandle, "snapshot" | "cancel" | "decide"> {
  cancel(): Promise<void>;
  decide(callId: string, decision: Decision): Promise<void>;
}

/** Opens with the first word, and again after a drop; every turn then goes on after the last event it has yielded. */
export interface TurnwireSocket {
  start(options: StartOptions): Promise<SocketTurn>;
  turn(turnId: string): SocketTurn;
  cancel(turnId: string): Promise<void>;
  decide(turnId: string, callId: string, decision: Decision): Promise<void>;
  close(): void;
}
