from fastapi import FastAPI, Response
from starlette.requests import HTTPConnection

from turnwire import Turn, Turnwire

USERS = {"secret-of-ada": "ada"}


def user_of(scope) -> str | None:
    """Return the name of the signed-in user, or None. Look it up in your own sessions here."""
    return USERS.get(HTTPConnection(scope).cookies.get("session", ""))


async def answer(turn: Turn):
    yield f"You are {turn.principal}, and you said: {turn.message}"


turnwire = Turnwire(agent=answer, data="turnwire-data", authenticate=user_of)
app = FastAPI(lifespan=turnwire.lifespan)
app.mount("/agent", turnwire.asgi())


@app.post("/sign-in")
async def sign_in(response: Response) -> None:
    # Check a password here.
    response.set_cookie("session", "secret-of-ada", httponly=True, samesite="lax")
