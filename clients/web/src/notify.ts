/**
 * The element <turnwire-notify>: a button that turns notifications on and off. The server loads it only if it sends
 * any; without it the element is empty.
 */

const root = new URL("..", import.meta.url);

class NotifyButton extends HTMLElement {
  #button: HTMLButtonElement | undefined;

  async connectedCallback(): Promise<void> {
    if (!("serviceWorker" in navigator) || !("PushManager" in window) || this.#button) return;
    const button = (this.#button = document.createElement("button"));
    button.type = "button";
    button.className = "quiet";
    button.dataset.testid = "notify";
    button.onclick = () => void this.#toggle();
    this.append(button);
    this.#show((await this.#subscription()) !== null);
  }

  #show(isOn: boolean): void {
    const button = this.#button!;
    button.ariaPressed = String(isOn);
    button.textContent = isOn ? "Notifications on" : "Notify me";
    button.title = isOn ? "Turn notifications off" : "Notify me when an answer that I left ends or asks";
  }

  async #toggle(): Promise<void> {
    const button = this.#button!;
    button.disabled = true;
    try {
      const current = await this.#subscription();
      if (current) {
        await call("DELETE", "v1/push/subscriptions", { endpoint: current.endpoint });
        await current.unsubscribe();
      } else await subscribe();
      this.#show(!current);
    } catch (error) {
      button.textContent = Notification.permission === "denied" ? "Your browser blocks notifications" : (error as Error).message;
    } finally {
      button.disabled = false;
    }
  }

  async #subscription(): Promise<PushSubscription | null> {
    return (await (await navigator.serviceWorker.getRegistration(root))?.pushManager.getSubscription()) ?? null;
  }
}

async function subscribe(): Promise<void> {
  if ((await Notification.requestPermission()) !== "granted") throw new Error("Notifications are not allowed.");
  await navigator.serviceWorker.register(new URL("sw.js", root), { scope: root.pathname });
  const { pushManager } = await navigator.serviceWorker.ready;
  const { public_key } = (await (await call("GET", "v1/push")).json()) as { public_key: string };
  const subscription = await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: public_key });
  await call("POST", "v1/push/subscriptions", subscription.toJSON());
}

async function call(method: string, path: string, body?: unknown): Promise<Response> {
  const headers = { "Content-Type": "application/json" };
  const content = body === undefined ? {} : { headers, body: JSON.stringify(body) };
  const response = await fetch(new URL(path, root), { method, credentials: "same-origin", ...content });
  if (!response.ok) throw new Error(`The server answered ${response.status}.`);
  return response;
}

customElements.define("turnwire-notify", NotifyButton);
