from typing import Any

from parrot_sdk import Bird

from turnwire import Turn
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.run_recorder import RunRecorder
from turnwire.agents.sdk_agent import SdkAgent


class ParrotAgent(SdkAgent):
    takes_client_tools = False

    def __init__(self, bird: Bird, **options: Any) -> None:
        super().__init__(takes_attachments=False, takes_model_options=False, **options)
        self.bird = bird

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        run = RunRecorder(queue)
        self._prepare(run, turn)
        call = await run.begin_model(("parrot", "bird"), lambda: turn.message)
        if call is None or call.is_live:
            events: list[dict[str, Any]] = []
            async for event in self.bird.talk(turn.message):
                events.append(event)
                show(run, event)
                await queue.wait_for_room()
            await run.finish_model(call, lambda: events)
        elif not call.is_shown:  # A restart has made the events of this finished call void.
            for event in call.result:
                show(run, event)
            await queue.flush()
            call.show()


def show(run: RunRecorder, event: dict[str, Any]) -> None:
    match event:
        case {"word": word}:
            run.write(f"{word} ")
        case {"lookup": topic, "found": found}:
            run.begin_call(f"lookup-{topic}", "lookup", {"topic": topic})
            run.end_call(f"lookup-{topic}", "lookup", True, found)
