from turnwire import Turn, Turnwire


class Viewer:
    takes_attachments = True

    async def answer(self, turn: Turn):
        for file in turn.options.get("attachments", []):
            yield f"{file.get('name', 'A file')} is {file['media_type']}. "
        yield f"You said: {turn.message}"


app = Turnwire(agent=Viewer(), data="viewer-data").asgi()
