"""Does a policy keep the contract? A conformance kit.

One line in pytest:

    from schedulers.conformance import conformance

    test_my_policy_conforms = conformance(MyPolicy)

Small random workloads on tiny engines are played under the policy by a world that checks every rule (`Rule`) at every
call. A policy that breaks one is answered with the smallest workload found that makes it do so. Nothing is needed but
the standard library; from the command line it is `experiment=conformance`.
"""

from schedulers.conformance.kit import Nonconformance, check_conformance, conformance, examine, examine_scenario
from schedulers.conformance.play import Policy
from schedulers.conformance.report import Examination, Violation
from schedulers.conformance.rules import BrokenRule, Rule
from schedulers.conformance.scenario import Job, Scenario

__all__ = [
    "BrokenRule",
    "Examination",
    "Job",
    "Nonconformance",
    "Policy",
    "Rule",
    "Scenario",
    "Violation",
    "check_conformance",
    "conformance",
    "examine",
    "examine_scenario",
]
