"""The kernel: discovers extensions, starts them in order, and routes their messages to the agents."""
