"""Why a run of the SDK failed, in words that are safe to show."""

from agents import (
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    UserError,
)
from agents.exceptions import ModelTimeoutError

from turnwire.agents.openai_agents.events import ModelFailure
from turnwire.core.errors import AgentError, ModelError, ToolError
from turnwire.models.errors import explain

_TRIPWIRES = (
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)


def explained(error: Exception, failure: ModelFailure | None) -> Exception:
    """The error for the user, or the same one if there are no better words for it."""
    if failure is not None and error is failure.error:
        return explain(error, failure.model)
    match error:
        case MaxTurnsExceeded():
            return AgentError("the agent took more steps than it may; ask for less at once", code="max_turns")
        case _ if isinstance(error, _TRIPWIRES):
            return AgentError("a guardrail of this agent stopped the answer; ask for something else", code="guardrail")
        case UserError(__cause__=Exception() as cause) if str(error).startswith("Error running tool"):
            # A tool whose `failure_error_function` is None: what it raises ends the run.
            return ToolError(f"a tool of this agent failed ({type(cause).__name__})")
        case ModelTimeoutError():
            silence = f"{error.timeout_seconds:g} seconds"
            return ModelError(f"the model took longer than {silence}; try again", "model_unavailable")
        case ModelRefusalError():
            return ModelError("the model declined to answer in the form that was asked of it", "bad_answer")
        case ModelBehaviorError():
            return ModelError("the model's answer cannot be used; ask again", "bad_answer")
        case _:
            return error
