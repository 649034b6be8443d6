"""The stores: each implements `core.contracts.Store`, and all run the same contract suite."""
