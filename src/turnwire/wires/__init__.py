"""The wires: one package per client protocol, each with a pure encoder from a turn's log to bytes."""
