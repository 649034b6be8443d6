/** Options for `WorkflowChatTransport`: each request names its chat and the version of the SDK. */
export const workflowOptions = (server) => ({
  api: `${server}/api/chat`, // The transport appends to it, so it must not have a query.
  prepareSendMessagesRequest: ({ id, messages, trigger, messageId, body }) => ({
    headers: { "Content-Type": "application/json" },
    body: { id, messages, trigger, messageId, ...body },
  }),
  fetch(address, options) {
    const url = new URL(address);
    url.searchParams.set("sdk_version", "7");
    return fetch(url, options);
  },
});
