"""Evaluation of retrieval and answers on questions with known answers.

`own` is the bundled collection: questions about Turnwire's own documentation, and some about other things. `beir` and
`squad` read public collections in those formats from local files.
"""
