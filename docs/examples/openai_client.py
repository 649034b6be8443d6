from openai import AsyncOpenAI

from turnwire import Turn, Turnwire


async def greet(turn: Turn):
    yield "Good "
    yield "morning."


app = Turnwire(agent=greet, store="memory").asgi()


async def ask(url: str = "http://127.0.0.1:8420/v1") -> str:
    client = AsyncOpenAI(base_url=url, api_key="none")
    async with client, client.responses.stream(model="turnwire", input="good morning") as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
        return (await stream.get_final_response()).output_text
