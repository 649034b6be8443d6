"""The routes: `streams` answers with an open body, each other module is one family of JSON routes."""
