import asyncio

from weather_bot import make_agent

from turnwire.testing import open_client, says


def test_agent_knows_the_conversation(scripted_model):
    async def converse():
        scripted_model.plan(says("Hello."), says("You said hello."))
        async with open_client(make_agent()) as client:
            first = await client.send("Hello!")
            return await client.send("What did I say?", session_id=first.session_id)

    assert asyncio.run(converse()).text == "You said hello."
    messages = scripted_model.requests[-1].body["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
