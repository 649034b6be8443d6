"""The HTTP toolkit: routing, authentication, errors, pages and streams. It knows no client protocol."""
