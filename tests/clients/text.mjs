// The AI SDK's text transport on the three-phase route: all three phases arrive as one growing text.
import { args, print, url } from "./script_io.mjs";

const [version, question] = args;
const ai = await import({ 5: "ai5", 6: "ai", 7: "ai7" }[version]);
const transport = new ai.TextStreamChatTransport({
  api: `${url}/v1/rag/sessions/s1/messages/stream`,
  prepareSendMessagesRequest: ({ messages }) => ({ body: { message: messages.at(-1).parts[0].text } }),
});
const stream = await transport.sendMessages({
  chatId: "c1",
  trigger: "submit-message",
  messages: [{ id: "m1", role: "user", parts: [{ type: "text", text: question }] }],
  abortSignal: undefined,
});
for await (const part of stream) if (part.type === "text-delta") print({ delta: part.delta });
print({ ended: true });
