"""The SDK's exceptions as errors that are safe to show."""

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

from turnwire.agents.openai_agents.events import Run
from turnwire.core.errors import AgentError, ModelError, ToolError, step_limit_reached
from turnwire.models.errors import explain

_TRIPWIRES = (
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)


def explain_failure(error: Exception, run: Run) -> Exception:
    """Return an error with a message for the user, or the same error if there is none."""
    failure = run.failure
    if failure is not None and error is failure.error and not failure.is_tool:
        return explain(error, failure.name)
    match error:
        case MaxTurnsExceeded():
            return step_limit_reached()
        case _ if isinstance(error, _TRIPWIRES):
            return AgentError("a guardrail of this agent stopped the answer; rephrase the request", code="guardrail")
        case UserError(__cause__=Exception() as cause) if failure and cause is failure.error:
            # The exception of a tool whose `failure_error_function` is None ends the run.
            return ToolError(f"a tool of this agent failed ({type(cause).__name__})")
        case ModelTimeoutError():
            limit = f"{error.timeout_seconds:g} seconds"
            return ModelError(f"the model took longer than {limit}; try again", "model_unavailable")
        case ModelRefusalError():
            return ModelError("the model refused to answer in the required form; rephrase the request", "bad_answer")
        case ModelBehaviorError():
            return ModelError("the model's answer cannot be used; try again", "bad_answer")
        case _:
            return error
