"""Workloads: who asks for how much, and when. Each is configured by a file in conf/workload."""

from experiments.workloads.arrivals import Arrivals, Gamma, OnOff, Poisson
from experiments.workloads.azure import AzureTrace
from experiments.workloads.build import build
from experiments.workloads.burstgpt import BurstGPTTrace
from experiments.workloads.clients import RequestClass
from experiments.workloads.following import Plan
from experiments.workloads.lengths import Fixed, Lengths, Lognormal, Percentiles
from experiments.workloads.limits import Checked, check_lengths
from experiments.workloads.llmservingsim import LLMServingSimTrace
from experiments.workloads.mixture import Mixture, Part
from experiments.workloads.mooncake import MooncakeTrace
from experiments.workloads.predictors import Constant, Noisy, NoPrediction, Oracle, Predictor
from experiments.workloads.prefixes import SharedPrefixes
from experiments.workloads.request import Workload, WorkloadRequest
from experiments.workloads.sessions import Sessions
from experiments.workloads.sharegpt import ShareGPT
from experiments.workloads.synthetic import AllAtOnce, ClosedLoop, Synthetic
from experiments.workloads.trace import Trace, TraceRow

__all__ = [
    "AllAtOnce",
    "Arrivals",
    "AzureTrace",
    "BurstGPTTrace",
    "Checked",
    "ClosedLoop",
    "Constant",
    "Fixed",
    "Gamma",
    "LLMServingSimTrace",
    "Lengths",
    "Lognormal",
    "Mixture",
    "MooncakeTrace",
    "NoPrediction",
    "Noisy",
    "OnOff",
    "Oracle",
    "Part",
    "Percentiles",
    "Plan",
    "Poisson",
    "Predictor",
    "RequestClass",
    "Sessions",
    "ShareGPT",
    "SharedPrefixes",
    "Synthetic",
    "Trace",
    "TraceRow",
    "Workload",
    "WorkloadRequest",
    "build",
    "check_lengths",
]
