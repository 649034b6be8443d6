"""The stores: each implements `core.contracts.stores.Store`, and all run the same contract suite."""
