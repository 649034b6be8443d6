import asyncio
from uuid import uuid4

from a2a.client import ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest


async def ask(text: str, url: str = "http://127.0.0.1:8420") -> str:
    client = await ClientFactory().create_from_url(url)
    message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)])
    answer = ""
    async for event in client.send_message(SendMessageRequest(message=message)):
        if event.HasField("artifact_update"):
            answer += "".join(part.text for part in event.artifact_update.artifact.parts)
    await client.close()
    return answer


if __name__ == "__main__":
    print(asyncio.run(ask("Hello")))
