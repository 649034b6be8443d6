from turnwire import Turn, Turnwire, emit
from turnwire.core.log.events import StatusEvent


async def answer(turn: Turn) -> str:
    emit(StatusEvent("Thinking"))
    return f"You said: {turn.message}"


app = Turnwire(agent=answer, data="function-data").asgi()
