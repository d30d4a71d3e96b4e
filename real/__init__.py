"""The real world: an engine that serves tokens under the same schedulers (it comes after the simulated one)."""
