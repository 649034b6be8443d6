"""OpenAI's Chat Completions and Responses APIs as wires."""
