"""`ag_ui`: the events of the Agent User Interaction protocol, version 1.0, and what older clients take of them.

`wire` is the wire, `encoder` how a log becomes events; `frames` writes and numbers them, `runs` and `ending` say how a
run begins and ends, `voices` what is being said, `calls` how tools stand, `activities` what is searched and judged,
`crew` which sub-agents are at work, `interrupts` what a person is asked.
"""
