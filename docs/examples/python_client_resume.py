from pathlib import Path

from turnwire.client import Client, Gap, ReceivedEvent, Reset


def copy_log(turn_id: str, file: Path, url: str = "http://127.0.0.1:8420") -> None:
    """Copy a turn's events to a file; a program that was stopped continues where it was."""
    lines = file.read_text().splitlines() if file.exists() else []
    last_event_id = lines[-1].partition(" ")[0] if lines else None
    with Client(url) as client:
        for update in client.turn(turn_id, after=last_event_id).updates():
            match update:
                case ReceivedEvent(id=event_id, body=body):
                    lines.append(f"{event_id} {body.decode()}")
                case Reset():
                    lines.clear()
                case Gap(first_kept=first_kept):
                    print(f"the events before {first_kept} were removed")
            file.write_text("\n".join(lines))
