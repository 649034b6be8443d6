from turnwire import Turn, Turnwire, read_file


class Viewer:
    takes_attachments = ("image/*", "application/pdf")

    async def answer(self, turn: Turn):
        for file in turn.attachments:
            data = await read_file(file)
            yield f"{file.name or 'A file'} is {file.media_type} of {len(data)} bytes. "
        yield f"You said: {turn.message}"


app = Turnwire(agent=Viewer(), data="viewer-data").asgi()
