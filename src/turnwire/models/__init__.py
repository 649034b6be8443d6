"""Language models: one small streaming interface, and a client for OpenAI-compatible servers."""
