"""`ag_ui`: the Agent User Interaction protocol, version 1.0 and the clients before it.

`encoder` turns a log into events, `messages` parses requests, `resume` finds the run that
a request means, `routes` serves it.
"""
