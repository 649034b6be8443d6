"""Language models: one streaming interface, and a client for OpenAI-compatible servers."""
