"""Shape rules for the most common operators on plain cpu tensors, tried before torch's own.

The first fake tensor of a process imports sympy and `torch._dynamo`, which takes longer than most captures and checked
loads, and so do torch's meta kernels in Python. These rules need neither: views have C++ kernels, and for the rest a
few lines compute shape, dtype and strides. A rule is valid for the tensors that it accepts; all others, and all errors,
are left to torch. Tests compare each rule with fake tensors, over dtypes, shapes and strides.
"""

from torch_ir.ops.own_shape_rules.shape_rule_table import RULES, call_on_meta

__all__ = ["RULES", "call_on_meta"]
