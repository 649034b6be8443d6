"""Check a downloaded log against its seal: `python check_log.py log.jsonl seal.json [key]`.

`log.jsonl` comes from `GET /v1/turns/{id}/log.jsonl`, `seal.json` from `GET /v1/turns/{id}/seal`, and the key is the
server's `seal_key`. It needs nothing but Python.
"""

import base64
import hashlib
import hmac
import json
import sys
from pathlib import Path


def check(log: bytes, seal: dict, key: str | None = None) -> str | None:
    """Return what is wrong with a log, or None."""
    names = ("turn_id", "events", "entries", "log", "journal", "last", "marks", "sealed_at")
    facts = ["turnwire seal 1", *(seal[name] for name in names)]
    root = hashlib.sha256("".join(f"{fact}\n" for fact in facts).encode()).hexdigest()
    if key is not None:
        signature = hmac.new(key.encode(), root.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(signature, seal.get("signature") or ""):
            return "the seal is not signed with this key"
    running, marks = hashlib.sha256(), base64.b64decode(seal.get("log_marks", ""))
    number, expected = 0, 1
    for number, line in enumerate(log.splitlines(), start=1):
        head, _, rest = line.partition(b',"event":')
        logged = json.loads(head + b"}")
        if logged["position"] != expected:
            return f"position {expected} was dropped"
        expected += 1
        running.update(b"%d %d %b\n" % (logged["epoch"], logged["at"], rest[:-1]))
        if marks and running.digest()[:2] != marks[2 * number - 2 : 2 * number]:
            return f"position {number} was changed, dropped or swapped"
    if number != seal["events"]:
        return f"the positions after {number} were dropped"
    return None if running.hexdigest() == seal["log"] else "the log was changed"


if __name__ == "__main__":
    path, seal_path, *keys = sys.argv[1:]
    problem = check(Path(path).read_bytes(), json.loads(Path(seal_path).read_text()), *keys)
    print(problem or "The log is the one that was sealed.")
    sys.exit(1 if problem else 0)
