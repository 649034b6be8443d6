"""The JSON API: one module per resource, and the FastAPI app that serves them."""
