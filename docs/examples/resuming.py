from turnwire import Turn, Turnwire
from turnwire.core.log.events import ToolCallEvent, ToolResultEvent

WEATHER = {"Oslo": "snow", "Rome": "sunshine"}


class Forecaster:
    on_crash = "resume"

    def repeats(self, tool: str) -> bool:
        return tool == "weather"

    async def answer(self, turn: Turn):
        known = {message.call_id: message.content for message in turn.progress if message.role == "tool"}
        for city, weather in WEATHER.items():
            if city not in known:
                yield ToolCallEvent(city, "weather", {"city": city})
                known[city] = weather
                yield ToolResultEvent(city, "weather", True, weather)
        yield ", ".join(f"{city}: {weather}" for city, weather in known.items())


app = Turnwire(agent=Forecaster(), data="forecaster-data").asgi()
