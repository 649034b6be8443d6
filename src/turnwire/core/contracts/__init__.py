"""The interfaces between the core and its implementations, by their readers: agents, stores and wires."""
