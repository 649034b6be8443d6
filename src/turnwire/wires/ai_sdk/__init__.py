"""`ai_sdk`: the UI message stream of the Vercel AI SDK, for versions 5, 6 and 7 of its clients.

`wire` is the wire, `encoder` how a log becomes chunks; `chunks` writes them, `calls` knows how tools stand, `asides`
what sub-agents say, and `ending` the words for how a turn ends. `answer` is the answer's bare text, for the client
that wants no more.
"""
