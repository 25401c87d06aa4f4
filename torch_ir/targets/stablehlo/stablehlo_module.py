"""Write a graph as a StableHLO module: a private function for each function, and `main`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch_ir.analysis.shapes.open_sizes import visit_graphs
from torch_ir.errors import UnsupportedOperatorsError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.sizes.symbols import size_conditions
from torch_ir.passes.decompose.decompose_pass import Decomposing
from torch_ir.passes.decompose.named_opsets import LeftOperator, shapes_of
from torch_ir.targets.mlir.graph_writer import ENTRY, Function, Refused
from torch_ir.targets.mlir.syntax import symbol
from torch_ir.targets.stablehlo.graph_function import Writer
from torch_ir.targets.stablehlo.rules import RULES
from torch_ir.targets.stablehlo.torch_rules import TORCH_RULES
from torch_ir.targets.standalone_functions import ConvertedFunctions, with_functions
from torch_ir.targets.unchecked_guards import without_guards


@dataclass(frozen=True)
class StableHLO:
    """A module: its text, and what the arguments and results of its function `main` are, in order.

    Arguments are `weights`, by their state-dict keys, then `inputs`. Results are `outputs`, then the new values of
    `mutated` weights, by key, and inputs, by name. `sizes` are conditions on dynamic sizes that `main` does not check.
    """

    text: str
    weights: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mutated: tuple[str, ...]
    sizes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


def write_module(ir: IR, functions: str) -> StableHLO:
    """Return the module of a graph; one error lists all operators that cannot be written."""
    core, reasons = _in_core_set(without_guards(ir, "StableHLO"))
    ir = with_functions(core, functions)
    missing: list[Refused] = []

    def convert(body: IR, name: str, op_type: str, called: Mapping[str, Function]) -> Function:
        writer = Writer(body, called, reasons)
        function = writer.private_function(name)
        missing.extend(writer.missing)
        return function

    made = ConvertedFunctions(convert, {ENTRY})
    writer = Writer(ir, made.called_by(ir), reasons)
    weights = [tensor for tensor in ir.params if tensor.param is None or tensor.param.data is None]
    constants = [tensor for tensor in ir.params if tensor not in weights]
    arguments = [(tensor, _key(tensor)) for tensor in (*weights, *ir.graph_inputs)]
    lines = writer.function(f"public @{ENTRY}", arguments, constants)
    if missing := [*missing, *writer.missing]:
        rows = _ranked(missing)
        head = f"StableHLO cannot express {len(missing)} of the graph's nodes:"
        raise UnsupportedOperatorsError("\n".join([head, *(f"  {row}" for row in rows)]), rows)
    bodies = [line for function in made for line in function.lines]
    text = "\n".join([f"module {symbol(ir.model_name or 'graph')} {{", *bodies, *lines, "}", ""])
    return StableHLO(
        text,
        tuple(map(_key, weights)),
        tuple(tensor.name for tensor in ir.graph_inputs),
        tuple(tensor.name for tensor in ir.graph_outputs),
        tuple(_key(target) for target, _ in ir.mutations),
        tuple(size_conditions(ir)),
    )


def _key(tensor: TensorMeta) -> str:
    return tensor.key or tensor.name


def _ranked(missing: Iterable[Refused]) -> list[LeftOperator]:
    """Return a row for each operator, those with most nodes first, with their distinct shapes and reasons."""
    groups: dict[str, list[Refused]] = {}
    for each in missing:
        groups.setdefault(each.node.op_type, []).append(each)
    rows = [
        LeftOperator(
            op_type,
            len(group),
            tuple(dict.fromkeys(shapes_of(each.node) for each in group)),
            "; ".join(dict.fromkeys(each.why for each in group)),
        )
        for op_type, group in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.nodes)


def _in_core_set(ir: IR) -> tuple[IR, dict[str, str]]:
    """Return a copy with only operators that have a rule, and why each other operator was not decomposed.

    Functions are kept.
    """
    copy, reasons = ir.clone(), dict[str, str]()
    visit_graphs(copy, lambda graph: _ToCore(graph, reasons).run())
    return copy.check(), reasons


class _ToCore(Decomposing):
    """One run over a graph; rules of this target come before torch's decompositions."""

    def __init__(self, ir: IR, reasons: dict[str, str]) -> None:
        super().__init__(ir, RULES.__contains__)
        self._reasons = reasons

    def _objection(self, old: TensorMeta, new: TensorMeta) -> str:
        """Values have no memory here: strides and aliases do not matter."""
        maker = old.producer
        return "" if maker is None or self.know.names_no_size(maker) else "it determines a size"

    def _update_strides(self, node: OpNode) -> None:
        """Keep the strides of capture, which `as_strided` refers to."""

    def _body(self, node: OpNode) -> IR | str:
        found = super()._body(node)
        if isinstance(found, str):
            self._reasons[node.op_type] = found
        return found

    def _decomposed(self, node: OpNode) -> IR | str:
        rule = TORCH_RULES.get(node.op_type)
        found = self._by_rule(node, rule) if rule is not None else ""
        return super()._decomposed(node) if isinstance(found, str) else found
