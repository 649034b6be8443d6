"""Benchmarks: the cost of a streamed token and of an answer from documents, beside hand-written servers.

Run `python -m bench --quick`; `README.md` in this folder describes the method.
"""
