"""Seals: evidence of tampering with the logs and journals of ended turns.

When a log is sealed, one digest runs over its lines and one over those of its journal; after each line, two bytes of
the running digest are kept as a mark, which locate a change. The digests, the number of lines, the last line and the
marks go into a root, which is signed if there is a key. Changing, dropping or swapping lines changes the digest
from there on, and without the key nobody can make another signature.

A log that has expired has only its last line, which the root has a digest of too: it is intact, with a gap.
"""

import hashlib
import hmac
from io import BytesIO

from msgspec.structs import replace

from turnwire.core.contracts.stores import Seal

MARK_BYTES = 2


def make_seal(turn_id: str, log: bytes, journal: bytes, key: bytes | None, sealed_at: int) -> Seal:
    """Return the seal of a whole log and journal, as lines (see `stores.lines`)."""
    log_digest, log_marks = digest_lines(log)
    journal_digest, journal_marks = digest_lines(journal)
    seal = Seal(
        turn_id=turn_id,
        events=len(log_marks) // MARK_BYTES,
        entries=len(journal_marks) // MARK_BYTES,
        log=log_digest,
        journal=journal_digest,
        last=hashlib.sha256(log.rpartition(b"\n")[2]).hexdigest(),
        marks=marks_digest(log_marks, journal_marks),
        sealed_at=sealed_at,
        log_marks=log_marks,
        journal_marks=journal_marks,
    )
    return seal if key is None else replace(seal, signature=signature_of(seal, key))


def root_of(seal: Seal) -> str:
    """Return the digest of everything that a seal vouches for."""
    counts, digests = (seal.events, seal.entries), (seal.log, seal.journal, seal.last, seal.marks)
    facts = ("turnwire seal 1", seal.turn_id, *counts, *digests, seal.sealed_at)
    return hashlib.sha256("".join(f"{fact}\n" for fact in facts).encode()).hexdigest()


def signature_of(seal: Seal, key: bytes) -> str:
    return hmac.new(key, root_of(seal).encode("ascii"), hashlib.sha256).hexdigest()


def digest_lines(lines: bytes) -> tuple[str, bytes]:
    """Return the digest of the lines, and the mark of each."""
    running = hashlib.sha256()
    update, digest = running.update, running.digest
    marks: list[bytes] = []
    for line in BytesIO(lines + b"\n" if lines else b""):
        update(line)
        marks.append(digest()[:MARK_BYTES])
    return running.hexdigest(), b"".join(marks)


def marks_digest(log_marks: bytes, journal_marks: bytes) -> str:
    return hashlib.sha256(b"%d\n%b%b" % (len(log_marks), log_marks, journal_marks)).hexdigest()
