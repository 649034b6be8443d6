"""The runtime of extensions: discovers them, starts them in order, and routes their messages to the agents."""
