from turnwire import Turn, Turnwire


async def answer(turn: Turn):
    yield "You said: "
    for word in turn.message.split():
        yield word + " "


app = Turnwire(agent=answer, data="echo-data").asgi()
