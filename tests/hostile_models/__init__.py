"""Models that are hard to capture, each with its expected result.

A model that cannot be captured marks the line that a diagnosis must name with the comment `# here`.
"""

from tests.hostile_models import data, failures, outside, state
from tests.hostile_models.case import CASES, Case, X

__all__ = ["CASES", "Case", "X", "data", "failures", "outside", "state"]
