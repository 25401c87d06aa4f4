"""Golden packs: the values of every node, for comparison with another runtime."""

from torch_ir.golden.compare_dumps import Comparison, compare_golden
from torch_ir.golden.write import write_golden

__all__ = ["Comparison", "compare_golden", "write_golden"]
