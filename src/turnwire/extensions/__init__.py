"""The kernel: finds extensions, starts them in order, and brings their messages to the agents."""
