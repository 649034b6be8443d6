from typing import Any

from turnwire import QuestionEvent, ToolCallEvent
from turnwire.client import Client

LOCATE = {
    "name": "locate",
    "description": "Find out where the user is.",
    "parameters": {"type": "object", "properties": {"exact": {"type": "boolean"}}},
}


def locate(exact: bool = False) -> dict[str, Any]:
    return {"city": "Oslo", "street": "Karl Johans gate" if exact else None}


def answer(message: str, url: str = "http://127.0.0.1:8000", key: str | None = None) -> str:
    with Client(url, key=key) as client:
        turn = client.start(message, tools=[LOCATE])
        for event in turn.events():
            match event:
                case ToolCallEvent(tool="locate", runs_on="client"):
                    turn.send_tool_result(event.call_id, locate(**event.args))
                case QuestionEvent(prompt=prompt, schema=schema):
                    print(prompt, schema)
                    turn.reply(event.id, "plus")
                case _:
                    pass
        return turn.text


if __name__ == "__main__":
    print(answer("Where am I?"))
