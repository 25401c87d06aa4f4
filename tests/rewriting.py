"""Helpers for tests of rules and passes: small graphs in one line, and a rewrite that is checked and run."""

import re
import textwrap
from collections.abc import Sequence
from typing import Any

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.ir import IR, Device, Dtype, Layout, MemoryFormat, Param, Slot, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ir.graph.node import OpNode
from torch_ir.passes import Pass, Report, apply_rules, optimize
from torch_ir.passes.random_check import Proof, prove
from torch_ir.rewrite import Rule

Step = str | Pass | Rule
_TYPED = {kind.__name__: kind for kind in (Device, Dtype, Layout, MemoryFormat)}


def small(inputs: str, returns: str | Sequence[str] = "", /, *, weights: str = "", **calls: str) -> IR:
    """A graph from its text: `small("x: float32[2, 3]", neg="aten.neg.default(x)", relu="aten.relu.default(neg)")`.

    Tensors of `weights` are parameters. Arguments are tensors by name, in schema order or with their names, and values
    of Python or of the IR, `Dtype("int32")`; what several outputs are called is `name_0`, `name_1`. The last call is
    returned unless `returns` says else.
    """
    given, params = _tensors(inputs), _tensors(weights)
    for param in params:
        param.param = Param((param.name,))
    known: dict[str, TensorMeta] = {tensor.name: tensor for tensor in (*given, *params)}
    know = Knowledge(IR([], [tensor.copy() for tensor in given], []))
    names = FreeNames(set(known))
    nodes = []
    for name, text in calls.items():
        op_type, arguments = _call(text, known)
        tensors, attrs, made = know.call(op_type, arguments)
        for index, tensor in enumerate(made):
            tensor.name = names.free(name if len(made) == 1 else f"{name}_{index}")
            known[tensor.name] = tensor
        nodes.append(OpNode(name, op_type, tensors.values(), made, attrs, args=tensors))
    wanted = [returns] if isinstance(returns, str) else list(returns)
    outputs = [known[name] for name in wanted if name] or list(nodes[-1].outputs)
    tree = Slot(0) if len(outputs) == 1 else ...
    return IR(nodes, given, outputs, params=params, output_tree=tree).check()


def _tensors(text: str) -> list[TensorMeta]:
    found = re.findall(r"(\w+): (\w+)\[([^\]]*)\]", text)
    return [
        TensorMeta(name, [int(dim) if dim.isdigit() else dim for dim in re.split(r",\s*", dims) if dim], dtype)
        for name, dtype, dims in found
    ]


def _call(text: str, known: dict[str, TensorMeta]) -> tuple[str, dict[str, Any]]:
    """`aten.add.Tensor(x, other=2)`: tests are trusted, so Python itself reads the arguments."""
    from torch_ir.ops.schema import arguments, find_operator

    op_type, _, rest = text.partition("(")
    operator = find_operator(op_type)
    assert operator is not None, op_type
    read: Any = eval(f"(lambda *args, **kwargs: (args, kwargs))({rest}", {**_TYPED, **known})
    places = [argument.name for argument in arguments(operator)]
    return op_type, {**dict(zip(places, read[0], strict=False)), **read[1]}


def optimized(ir: IR, steps: Sequence[Step], *, exact: bool = False) -> IR:
    """Return the graph after these passes and rules, checked after each, and compared by running both."""
    return proved(ir, steps, exact=exact)[0]


def proved(ir: IR, steps: Sequence[Step], *, exact: bool = False) -> tuple[IR, Report]:
    """The same, with the report."""
    passes = [_as_pass(step) if isinstance(step, Rule) else step for step in steps]
    after, report = optimize(ir, passes=passes)
    proof = prove(ir, after, changes=report.changes)
    assert proof.is_valid, f"{proof}\n{ir}\n{after}"
    assert not exact or proof.max_diff == 0.0, f"{proof}\n{ir}\n{after}"
    return after, report


def _as_pass(rule: Rule) -> Pass:
    return Pass(rule.name, lambda ir: apply_rules(ir, rule))


def text(ir: IR) -> str:
    """The graph as text, for comparing with a text in a test."""
    return str(ir).strip()


def lines(wanted: str) -> str:
    """A text as a test writes it, without its indentation."""
    return textwrap.dedent(wanted).strip()


__all__ = ["Proof", "lines", "optimized", "proved", "small", "text"]
