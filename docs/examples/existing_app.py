from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from turnwire import Turn, Turnwire


async def answer(turn: Turn):
    yield f"You said: {turn.message}"


turnwire = Turnwire(agent=answer, data="turnwire-data")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Open your own database here, as before.
    async with turnwire.lifespan():
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/agent", turnwire.asgi())


@app.get("/")
async def home() -> dict[str, str]:
    return {"message": "Your own routes work as before."}
