"""How well retrieval finds, judges and quotes, measured on questions whose answers are known.

`own` is the set that comes along: questions about Turnwire's own documentation, and some about other things.
`beir` and `squad` read public sets in those formats from wherever they are on this machine; none is kept here.
"""
