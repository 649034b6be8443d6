"""Fixtures that the tests of retrieval share."""

from tests.retrieval.shelf import library, make_model, model, searcher
from tests.scripted_model import model_server

__all__ = ["library", "make_model", "model", "model_server", "searcher"]
