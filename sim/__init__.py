"""The SimPy world: clock, simulated engine, cost models."""
