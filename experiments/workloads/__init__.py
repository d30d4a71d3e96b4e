"""Workloads: who asks for how much, and when. Each is configured by a file in conf/workload."""

from experiments.workloads.arrivals import Arrivals, Gamma, Poisson
from experiments.workloads.azure import AzureTrace
from experiments.workloads.build import build
from experiments.workloads.lengths import Fixed, Lengths, Lognormal, Percentiles
from experiments.workloads.limits import Checked, check_lengths
from experiments.workloads.mooncake import MooncakeTrace
from experiments.workloads.predictors import Constant, Noisy, NoPrediction, Oracle, Predictor
from experiments.workloads.request import Workload, WorkloadRequest
from experiments.workloads.synthetic import RequestClass, Synthetic
from experiments.workloads.trace import Trace, TraceRow

__all__ = [
    "Arrivals",
    "AzureTrace",
    "Checked",
    "Constant",
    "Fixed",
    "Gamma",
    "Lengths",
    "Lognormal",
    "MooncakeTrace",
    "NoPrediction",
    "Noisy",
    "Oracle",
    "Percentiles",
    "Poisson",
    "Predictor",
    "RequestClass",
    "Synthetic",
    "Trace",
    "TraceRow",
    "Workload",
    "WorkloadRequest",
    "build",
    "check_lengths",
]
