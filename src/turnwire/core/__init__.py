"""The idea of Turnwire, with no framework in it.

A turn is a task that writes events to a log; readers follow the log. `events` says what can
happen, `log` and `follow` how it is written and read, `runner` how a turn lives and ends,
`contracts` what a store, an agent and a wire must promise.
"""
