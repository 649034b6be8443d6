import asyncio
from pathlib import Path

from turnwire.extensions.contract import Channel


class Mailbox(Channel):
    @property
    def folder(self) -> Path:
        return Path(self.context.get_config("folder") or self.context.data_folder)

    async def run_background(self) -> None:
        while True:
            for file in await asyncio.to_thread(self.messages):
                text = await asyncio.to_thread(file.read_text)
                await self.context.accept(text, file.parent.name, message_id=file.stem)
                file.unlink()  # The message is durable: from here on it is answered once, after a crash too.
            await asyncio.sleep(self.context.get_config("seconds"))

    def messages(self) -> list[Path]:
        return sorted(self.folder.glob("in/*/*.txt"))

    async def send_to_user(self, user_id: str, message: str) -> None:
        receipt = self.context.current_message(user_id)
        # An answer that comes twice replaces itself, because the file has the message's name.
        name = receipt.message_id if receipt else "notice"
        await asyncio.to_thread(self.write, self.folder / "out" / user_id / f"{name}.txt", message)

    def write(self, file: Path, message: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".part")
        partial.write_text(message)
        partial.replace(file)
