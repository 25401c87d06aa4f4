"""Constant folding: compute nodes that depend on constants alone, and merge equal constants."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator

import torch

from torch_ir.analysis.shapes.open_sizes import is_inside
from torch_ir.analysis.values.constants import is_small, size_in_bytes
from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.ir import IR, OpNode, Param, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.passes.clean.same_layout import is_contracted
from torch_ir.passes.pass_registry import named_pass
from torch_ir.rewrite.change_log import current_journal

_NAME = "fold-constants"
_LARGE = "its value takes {size} bytes, more than the limit of {limit}; it is computed once, when weights are bound"


@named_pass(_NAME)
def fold_constants(ir: IR, limit: int = 65536) -> int:
    """Fold nodes that depend on constants alone, if the result takes at most `limit` bytes or frees as many.

    before   a = arange(128);  b = unsqueeze(a, 0);  c = embedding(w, b)
    after    constant c_b: int64[1, 128];            c = embedding(w, c_b)

    Skipped inside functions, which cannot hold constants, and for graphs that are not entirely on the CPU.
    """
    folding = _Folding(ir, limit)
    if is_inside() or ir.mesh or not folding.know.is_home("cpu"):
        return 0
    folded = list(folding.nodes())
    for node in folded:
        for made in node.outputs:
            if any(reader not in folding.gone for reader in made._uses):
                made.replace_all_uses_with(folding.constant(made))
        current_journal().changed(_NAME, node.name, node.origins)
    for node in folded:
        node.inputs = ()
    ir.nodes = [node for node in ir.nodes if node not in folding.gone]
    return len(folded) + _shared(ir)


class _Folding:
    """The foldable nodes of a graph and the constants that replace their results."""

    def __init__(self, ir: IR, limit: int) -> None:
        self.ir = ir
        self.limit = limit
        self.know = Knowledge.of(ir)
        self.known = self.know.constants
        self.names = FreeNames({tensor.name for tensor in ir.tensors()})
        self.by_key = {param.key: param for param in ir.params}
        self.gone: set[OpNode] = set()

    def nodes(self) -> Iterator[OpNode]:
        for node in self.ir.nodes:
            if not node.outputs or any(self.known.value(made) is None for made in node.outputs):
                continue
            if why := self._objection(node):
                current_journal().decline(_NAME, node.name, why)
            else:
                self.gone.add(node)
                yield node

    def _objection(self, node: OpNode) -> str:
        """Return why a node with a known value is not folded, or ""."""
        freed = sum(map(_freed, node.inputs))
        for made in node.outputs:
            if not is_small(made, max(self.limit, freed)):
                return _LARGE.format(size=size_in_bytes(made), limit=self.limit)
            if why := self.know.objection(made, TensorMeta(made.name, made.shape, made.dtype, stride=made.stride)):
                return why
            if is_contracted(made) and self._has_odd_strides(made):
                return "a constant would not keep the strides that a consumer depends on"
        return ""

    def _has_odd_strides(self, made: TensorMeta) -> bool:
        """Whether a value recorded as row-major has dimensions of size 1 with unusual strides."""
        value = self.known.value(made)
        return (
            value is not None
            and made.stride is None
            and value.stride() != torch.empty(value.shape, device="meta").stride()
        )

    def constant(self, made: TensorMeta) -> TensorMeta:
        """Return the constant for a tensor; its key is a digest of its content, so equal values share one."""
        value = self.known.value(made)
        assert value is not None
        data = from_tensor(value)
        content = f"{data.dtype}{data.shape}{made.stride}".encode() + data.raw
        key = f"folded.{hashlib.sha256(content).hexdigest()[:16]}"
        if key not in self.by_key:
            param = TensorMeta(self.names.free(f"c_{made.name}"), made.shape, made.dtype, stride=made.stride)
            param.param = Param((key,), "constant", data)
            self.by_key[key] = param
            self.ir.params.append(param)
        return self.by_key[key]


def _freed(tensor: TensorMeta) -> int:
    """Return the bytes freed when the only consumer of a constant is folded; 0 for anything else."""
    is_constant = tensor.param is not None and not tensor.param.in_state_dict and len(tensor.consumers) == 1
    return (size_in_bytes(tensor) or 0) if is_constant else 0


def _shared(ir: IR) -> int:
    """Redirect consumers of equal constants to the first; return how many constants lost their consumers."""
    know, entries = Knowledge.of(ir), current_journal()
    first: dict[Hashable, TensorMeta] = {}
    count = 0
    for param in ir.params:
        data = param.param.data if param.param is not None and not param.param.in_state_dict else None
        if data is None or not param._uses or not know.is_weight(param) or not is_small(param):
            continue
        twin = first.setdefault((data.shape, data.dtype, data.raw, param.stride), param)
        if twin is not param and not know.objection(param, twin):
            param.replace_all_uses_with(twin)
            entries.changed("share-constants", param.name)
            count += 1
    return count
