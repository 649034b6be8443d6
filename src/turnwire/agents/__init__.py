"""Any agent in: each module makes one kind of agent into `core.contracts.agents.Agent`."""
