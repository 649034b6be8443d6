from turnwire import Turn, Turnwire
from turnwire.extensions.contract import Channel


class Notebook(Channel):
    """A channel that keeps answers in a list."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def receive(self, text: str, user_id: str, message_id: str) -> str:
        receipt = await self.context.accept(text, user_id, message_id=message_id)
        # Here the message is durable: confirm it to its sender.
        return await receipt.answer()

    async def send_to_user(self, user_id: str, message: str) -> None:
        self.lines.append(f"{user_id}: {message}")


async def answer(turn: Turn):
    yield f"You said: {turn.message}"


server = Turnwire(agent=answer, data="channel-data", extensions=[])
server.extensions.attach("notebook", Notebook())
app = server.asgi()
