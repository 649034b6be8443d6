from turnwire import Turn, Turnwire, emit_state


async def bake(turn: Turn):
    state = turn.options.get("state") or {"baked": 0}
    steps = [{"name": name, "done": False} for name in ("mix", "bake", "cool")]
    for step in steps:
        step["done"] = True
        emit_state({**state, "steps": steps})
        yield f"{step['name']} … "
    emit_state({"baked": state["baked"] + 1, "steps": steps})
    yield "done."


app = Turnwire(agent=bake, store="memory").asgi()
