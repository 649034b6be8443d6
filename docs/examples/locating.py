from turnwire import Turn, Turnwire, call_client_tool


async def answer(turn: Turn):
    if not any(tool["name"] == "locate" for tool in turn.options.get("client_tools", [])):
        yield "I cannot see where you are: send the tool `locate` with your message."
        return
    place = await call_client_tool("locate", {"exact": False})
    yield f"You are in {place['city']}."


answer.takes_client_tools = True
app = Turnwire(agent=answer, data="locating-data").asgi()
