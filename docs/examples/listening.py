from turnwire import Turn, Turnwire, take_inputs


async def answer(turn: Turn):
    notes = [turn.message]
    for chapter in range(3):
        notes += await take_inputs()  # What was sent since the last call.
        yield f"Chapter {chapter + 1}, about {', '.join(notes)}. "


app = Turnwire(agent=answer).asgi()
