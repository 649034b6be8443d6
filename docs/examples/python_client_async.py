import asyncio

from turnwire import ApprovalRequestEvent
from turnwire.client import AsyncClient


async def ask(message: str, url: str = "http://127.0.0.1:8420", key: str | None = None) -> str:
    async with AsyncClient(url, key=key) as client:
        turn = await client.start(message)
        async for event in turn.events():
            if isinstance(event, ApprovalRequestEvent):
                print(f"{event.tool} with {event.args} is allowed")
                await turn.decide(event.call_id, approved=True, args=event.args)
        state = (await turn.snapshot()).state
        print(state.outcome, [step.name for step in state.steps])
        return state.text


if __name__ == "__main__":
    asyncio.run(ask("Hello"))
