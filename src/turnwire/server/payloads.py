"""JSON payloads of the API: turns, states, sessions, budgets and keys."""

from typing import Any

import msgspec

from turnwire.core.codec import LoggedEvent, time_text
from turnwire.core.contracts import ApiKey, Budget
from turnwire.core.turns import Session, TurnRecord, TurnState
from turnwire.server.errors import HttpError
from turnwire.server.guard import Headers


def answer_status(state: TurnState) -> int:
    """Return 200 for an ended turn, 202 for one that waits for a person."""
    return 200 if state.outcome is not None else 202


def answer_json(state: TurnState, budget: Budget | None = None) -> dict[str, Any]:
    """Return the answer of an ended turn, or the approvals that a turn waits for; with the budget, if limited."""
    payload = {
        "session_id": state.session_id,
        "turn_id": state.turn_id,
        "content": state.text,
        "citations": msgspec.to_builtins(state.citations),
        "mode": state.mode,
        "tools_used": state.tools_used,
        "usage": msgspec.to_builtins(state.usage),
        "timings": state.timings,
        "outcome": state.outcome,
    }
    if state.outcome is None:
        waiting = [step for step in state.steps if step.state == "waiting"]
        payload["approvals"] = [
            {"call_id": step.id, "tool": step.name, "args": step.args, "reason": step.reason} for step in waiting
        ]
    if budget is not None:
        payload["budget"] = {"tokens_left": budget.left, "resets_at": time_text(budget.resets_at)}
    return payload


def budget_header(budget: Budget | None) -> Headers:
    """Return the header with the tokens that are left, if there is a limit."""
    return [] if budget is None else [(b"x-tokens-left", str(budget.left).encode("ascii"))]


def budget_json(budget: Budget) -> dict[str, Any]:
    has_limit = budget.limit > 0
    return {
        "limit": budget.limit if has_limit else None,
        "used": budget.used,
        "left": budget.left if has_limit else None,
        "resets_at": time_text(budget.resets_at),
    }


def turn_error(state: TurnState, code: str | None = None) -> HttpError | None:
    """Return a 500 for a turn that failed or whose process was lost; None for any other turn.

    With a `code`, the turn's own code becomes the `cause`.
    """
    if state.outcome not in ("failed", "interrupted"):
        return None
    error = state.error
    cause = error.code if error else "turn_failed"
    fields: dict[str, Any] = {"turn_id": state.turn_id, "session_id": state.session_id, "outcome": state.outcome}
    if code is not None:
        fields["cause"] = cause
    return HttpError(500, code or cause, error.error if error else "the turn did not complete", **fields)


def chat_error(state: TurnState) -> HttpError | None:
    """Return the error of a failed turn on the routes of text streams."""
    return turn_error(state, "chat_failed")


def turn_json(record: TurnRecord) -> dict[str, Any]:
    return {
        "turn_id": record.id,
        "session_id": record.session_id,
        "external_id": record.external_id,
        "parent_turn_id": record.parent_turn_id or None,
        "agent": record.agent,
        "message": record.message,
        "phase": record.phase,
        "outcome": record.outcome,
        "last_position": record.last_position,
        "created_at": time_text(record.created_at),
        "started_at": time_text(record.started_at),
        "ended_at": time_text(record.ended_at),
    }


def snapshot_json(record: TurnRecord, state: TurnState) -> dict[str, Any]:
    """Return a turn and its state at one position, so that `after=position` misses and repeats nothing."""
    return {**turn_json(record), "position": state.position, "state": msgspec.to_builtins(state)}


def session_json(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "external_id": session.external_id,
        "title": session.title,
        "turn_count": session.turn_count,
        "created_at": time_text(session.created_at),
        "updated_at": time_text(session.updated_at),
    }


def key_json(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "principal": key.principal,
        "scopes": list(key.scopes),
        "created_at": time_text(key.created_at),
        "expires_at": time_text(key.expires_at),
        "revoked_at": time_text(key.revoked_at),
    }


def logged_json(logged: LoggedEvent) -> bytes:
    return b'{"position":%d,"epoch":%d,"at":%d,"event":%b}' % (
        logged.position,
        logged.epoch,
        logged.at,
        logged.body,
    )
