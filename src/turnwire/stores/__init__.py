"""Where logs live. Each store is one implementation of `core.contracts.Store`, under one contract suite."""
