"""A power cut, made of the writes of a real store: what was synced stays, the rest is lost, torn or reordered."""
