"""What a step costs: cost models, each a class that conf/cost names."""

from sim.costs.aiconfigurator import AIConfigurator
from sim.costs.auto import Auto
from sim.costs.cost_model import CostModel, arrival_s
from sim.costs.profiled import Profiled
from sim.costs.recorded import Recorded
from sim.costs.roofline import Roofline

__all__ = ["AIConfigurator", "Auto", "CostModel", "Profiled", "Recorded", "Roofline", "arrival_s"]
