from turnwire import TokenEvent
from turnwire.client import Client, ClientError


def ask(message: str, url: str = "http://127.0.0.1:8420") -> str | None:
    with Client(url) as client:
        try:
            turn = client.start(message, session_id="my-chat")
            for event in turn.events():
                if isinstance(event, TokenEvent):
                    print(event.content, end="", flush=True)
            return turn.text
        except ClientError as error:
            print(error.status, error.code, error.message)
            return None


if __name__ == "__main__":
    ask("Hello")
