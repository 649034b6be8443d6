from fastapi import FastAPI

from turnwire import Turn, Turnwire


async def answer(turn: Turn):
    yield f"You are {turn.principal}, and you said: {turn.message}"


def who_is_calling(scope) -> str | None:
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


turnwire = Turnwire(agent=answer, data="mounted-data", authenticate=who_is_calling)
app = FastAPI(lifespan=turnwire.lifespan)
app.mount("/agent", turnwire.asgi())
