/** The client of this page, and requests that it needs at start. */

import { type Agent, TurnwireClient, TurnwireError } from "../../js/src/index.ts";

export { uuid as newId } from "../../js/src/message_body.ts";

/** The address where Turnwire is mounted: this script is in a folder below it. */
export const root = new URL("..", import.meta.url).href.replace(/\/$/, "");
export const client = new TurnwireClient({ url: root, credentials: "same-origin" });

export interface Me {
  principal: string | null;
  scopes: string[];
  login_required: boolean;
  logged_in: boolean;
}

export interface Offer {
  agents: Agent[];
  takes_documents: boolean;
}

export const fetchMe = (): Promise<Me> => client.request<Me>("GET", "/v1/me");
export const fetchOffer = (): Promise<Offer> => client.request<Offer>("GET", "/v1/agents");
export const logIn = (key: string): Promise<Me> => client.request<Me>("POST", "/login", { key });
export const logOut = (): Promise<void> => client.request<void>("POST", "/logout");

/** The parts of the page that only newer servers support. */
export interface Features {
  feedback: boolean;
  share: boolean;
}
let features: Promise<Features> | undefined;

/** Asks the server once whether it keeps feedback; the same servers share sessions. */
export const fetchFeatures = (): Promise<Features> =>
  (features ??= client.request("GET", "/v1/feedback?limit=1").then(
    () => ({ feedback: true, share: true }),
    () => ({ feedback: false, share: false }),
  ));

/** Hides a part whose route turned out to be missing. */
export function hideFeature(name: keyof Features): void {
  features = fetchFeatures().then((known) => ({ ...known, [name]: false }));
}

export const sessionAddress = (id: string): string => `${root}/?session=${encodeURIComponent(id)}`;
export const turnAddress = (id: string): string => `${root}/turns/${encodeURIComponent(id)}`;

export function errorText(error: unknown): string {
  if (error instanceof TurnwireError && error.status === 0) return "Server unreachable.";
  return error instanceof Error ? error.message : String(error);
}

export const isStatus = (error: unknown, status: number): boolean =>
  error instanceof TurnwireError && error.status === status;
