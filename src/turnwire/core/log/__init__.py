"""The log of a turn: its events, how they are encoded, written, followed, folded into a state and sealed."""
