"""`experiment=workload`: what a workload asks for, before anything is run."""

from experiments.describe.question import describe

__all__ = ["describe"]
