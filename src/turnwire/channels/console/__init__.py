"""The terminal: how turns look in it, how a person types in it, and the channel `console`."""
