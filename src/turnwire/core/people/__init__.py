"""The people of a turn: budgets, fair shares, the forms of questions, and the answers that turns wait for."""
