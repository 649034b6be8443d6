from turnwire import Turn, Turnwire, journaled

WEATHER = {"Oslo": "snow", "Rome": "sunshine"}


async def look_up(city: str) -> str:
    return WEATHER[city]


async def answer(turn: Turn):
    for city in WEATHER:
        weather = await journaled(f"weather in {city}", lambda city=city: look_up(city), idempotent=True)
        yield f"{city}: {weather}. "


answer.on_crash = "resume"
app = Turnwire(agent=answer, data="journaled-data").asgi()
