"""Asks questions: workloads, runs, sweeps, metrics, reports."""
