"""Documents: which files there are, what is written in them, and the passages that makes."""
