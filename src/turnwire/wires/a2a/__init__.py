"""The agents as A2A agents: a turn is a task, a session is a context, the answer is an artifact."""
