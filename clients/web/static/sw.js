/** The service worker: shows a notification about a turn, unless the page is visible, and opens its session. */

addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));

addEventListener("push", (event) => event.waitUntil(show(event.data.json())));
addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(open(event.notification.data));
});

async function show({ title, kind, outcome, message, session_id, turn_id }) {
  const windows = await clients.matchAll({ type: "window", includeUncontrolled: true });
  if (windows.some((page) => page.visibilityState === "visible")) return;
  const ended = outcome === "completed" ? "Answered" : "Ended";
  await registration.showNotification(title, {
    body: `${kind === "asks" ? "Waits for your decision" : ended}: ${message}`,
    tag: turn_id,
    data: new URL(`?session=${encodeURIComponent(session_id)}`, registration.scope).href,
  });
}

async function open(address) {
  const windows = await clients.matchAll({ type: "window", includeUncontrolled: true });
  const there = windows.find((page) => page.url === address);
  await (there ? there.focus() : clients.openWindow(address));
}
