"""Golden files of a policy's decisions on fixed workloads: what changed, at which step, for whom."""

from experiments.regression.fixed_workloads import FixedWorkload, fixed_workloads
from experiments.regression.golden import Golden
from experiments.regression.regression import compare, run, run_regression, update

__all__ = ["FixedWorkload", "Golden", "compare", "fixed_workloads", "run", "run_regression", "update"]
