/** The client of a component tree. */

import { createContext, createElement, type ReactNode, useCallback, useContext, useSyncExternalStore } from "react";
import type { ConnectionState, TurnwireClient } from "@turnwire/client";

const ClientContext = createContext<TurnwireClient | null>(null);

/** Gives all components below it one client. Create the client once, outside of any component. */
export function TurnwireProvider({ client, children }: { client: TurnwireClient; children?: ReactNode }): ReactNode {
  return createElement(ClientContext.Provider, { value: client }, children);
}

/** Returns the client of the nearest provider. */
export function useTurnwireClient(): TurnwireClient {
  const client = useContext(ClientContext);
  if (!client) throw new Error("There is no client here. Put the component into a <TurnwireProvider client={…}>.");
  return client;
}

/** Returns whether the server can be reached. Streams reconnect by themselves. */
export function useConnection(): ConnectionState {
  const client = useTurnwireClient();
  const subscribe = useCallback((changed: () => void) => client.onConnection(changed), [client]);
  return useSyncExternalStore(
    subscribe,
    () => client.connection,
    () => "online",
  );
}
