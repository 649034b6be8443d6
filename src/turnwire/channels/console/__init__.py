"""The terminal: rendering of turns, keyboard and prompt, the client of a server, and the channel `console`."""
