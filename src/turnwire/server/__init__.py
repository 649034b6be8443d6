"""The HTTP server: `Turnwire` is the whole of it, as a library or behind `turnwire serve`."""

from turnwire.server.turnwire import Turnwire

__all__ = ["Turnwire"]
