"""Bind weights to a graph and compute its prologue, whose results become weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch

from torch_ir.analysis.dependencies.slices import needed_for
from torch_ir.analysis.values.prologue import crossing, split_prologue
from torch_ir.ir import IR, Limits, OpNode, Param, TensorMeta
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.run.compiled_plan import Program
from torch_ir.run.memory_check import MemoryCheck
from torch_ir.run.stored import StoredTensor, Weight, loaded
from torch_ir.run.weight_files import fit_weights


class SharedWeights:
    """The weights of several graphs over one checkpoint: what two of them read or compute from it is one tensor."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self._numbers: dict[Hashable, int] = {}
        self._values: dict[int, torch.Tensor] = {}

    def bind(self, ir: IR, weights: Mapping[str, Weight]) -> tuple[IR, dict[str, torch.Tensor]]:
        """Bind weights to one of the graphs; see the function of the same name."""
        given = [self._placed(value) for value in fit_weights(ir, weights, {})]
        ir = ir.clone()
        once, every = split_prologue(ir)
        ready = crossing(once, every, ir)
        if once:
            MemoryCheck(ir, Limits()).check({})
        numbers = self._numbered(ir.params, once)
        self._compute(ir, given, once, [tensor for tensor in ready if numbers[tensor] not in self._values], numbers)
        taken = {key for param in ir.params if param.param for key in param.param.keys}
        made: list[TensorMeta] = []
        for tensor in ready:
            weight = tensor.copy()
            weight.param = Param((fresh(f"computed_{tensor.name}", taken),), "buffer")  # nn.Module uses no such name
            tensor.replace_all_uses_with(weight)
            numbers[weight] = numbers[tensor]
            made.append(weight)
        for node in once:
            node.inputs = ()
        ir.nodes = every
        changing = {target for target, _ in ir.mutations}
        for param, value in zip(ir.params, given, strict=True):
            if (param.consumers or param in changing) and numbers[param] not in self._values:
                self._values[numbers[param]] = loaded(value, self.device).detach()
        ir.params = [param for param in (*ir.params, *made) if param.consumers or param in changing]
        return ir.check(), {param.key or param.name: self._values[numbers[param]] for param in ir.params}

    def _placed(self, value: Weight) -> Weight:
        """Return a tensor on the device; those in files are read when they are needed."""
        return value if isinstance(value, StoredTensor) else loaded(value, self.device).detach()

    def _numbered(self, params: Iterable[TensorMeta], once: Iterable[OpNode]) -> dict[TensorMeta, int]:
        """Return the same number for tensors, of any of the graphs, that are the same weight or computed equally."""
        found: dict[TensorMeta, int] = {}
        for param in params:
            assert param.param is not None  # ensured by `check`
            data = param.param.data
            found[param] = self._number(param.param.keys if data is None else (data, param.shape, param.dtype))
        for node in once:
            read = tuple(found[tensor] for tensor in node.inputs)
            what = node if node.is_call else node.computation  # functions of one name may differ between graphs
            for index, tensor in enumerate(node.outputs):
                found[tensor] = self._number((what, read, index))
        return found

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _compute(
        self,
        ir: IR,
        given: Sequence[Weight],
        once: Sequence[OpNode],
        wanted: Sequence[TensorMeta],
        numbers: Mapping[TensorMeta, int],
    ) -> None:
        """Compute tensors of the prologue."""
        with NeutralState():
            made = Program(ir, needed_for(wanted, once), ir.params, wanted, self.device, lazy=True)(*given, {})
        self._values.update((numbers[tensor], value) for tensor, value in zip(wanted, made, strict=True))


def bind(ir: IR, weights: Mapping[str, Weight]) -> tuple[IR, dict[str, torch.Tensor]]:
    """Return a copy without prologue, and its weights by key; weights that only the prologue reads are dropped."""
    return SharedWeights().bind(ir, weights)
