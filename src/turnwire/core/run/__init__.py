"""The run of a turn: accepted by the runner, claimed by a worker, executed, recovered on another worker, and forked."""
