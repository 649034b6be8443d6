from turnwire.server.messages import MessageBody
from turnwire.server.request import Request
from turnwire.server.router import Route, response
from turnwire.server.services import Services
from turnwire.server.streams.stream import Stream, stream_from_first_frame
from turnwire.server.turns import start_turn
from turnwire_lines.encoder import Lines
from turnwire_lines.settings import LinesSettings


async def send(request: Request, services: Services) -> Stream:
    body, principal = await request.parse_body(MessageBody), request.caller.principal
    wire = Lines(tools=services.settings.of(LinesSettings).tools)
    with services.streams.room(principal):
        accepted = await start_turn(services, principal, body, request.idempotency_key)
        return stream_from_first_frame(request, services, accepted.record, wire)


def routes() -> list[Route]:
    answer = {"200": response("The answer", Lines.media_type)}
    return [
        Route("POST", "/lines", send, "Send a message", "lines", body=MessageBody, responses=answer, access="write")
    ]
