"""The journal of a turn: the recorded results of its calls, and its waits for answers."""
