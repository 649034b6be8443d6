import asyncio
import sys
from typing import Any

from acp import spawn_agent_process, text_block


class Editor:
    def __init__(self) -> None:
        self.text = ""

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        if update.session_update == "agent_message_chunk":
            self.text += update.content.text


async def ask(message: str, *options: str) -> str:
    editor: Any = Editor()
    async with spawn_agent_process(editor, sys.executable, "-m", "turnwire", "acp", *options) as (agent, _):
        await agent.initialize(protocol_version=1)
        session = await agent.new_session(cwd=".", mcp_servers=[])
        await agent.prompt(session_id=session.session_id, prompt=[text_block(message)])
    return editor.text


if __name__ == "__main__":
    print(asyncio.run(ask("Hello")))
