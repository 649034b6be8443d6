"""The core of Turnwire, independent of any framework, in rooms that know only the rooms below them.

- `run`: runs turns: runner, worker, execution, recovery, forks
- `journal`: records the calls of a turn, so that it can continue, and lets it wait for answers
- `people`: budgets, fair shares, and the answers of people
- `log`: events, and how they are written, followed and folded

`contracts` has the interfaces of agents, stores and wires.
"""
