"""Write a golden pack: the inputs of a graph, the values of its nodes, and the tolerances for another runtime."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_ir.errors import ExecutionError, did_you_mean
from torch_ir.golden.pack import FORMAT, INDEX, VERSION, Value
from torch_ir.golden.pack_writer import SHARD_BYTES, Shards, is_dense, new_pack
from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta
from torch_ir.ir.files.atomic_write import write_text
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.json.json_text import write_document
from torch_ir.ops.effects import is_random
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.run.compiled_plan import Sizes
from torch_ir.run.executor import IRExecutor, flatten_call
from torch_ir.run.tolerances import tolerances
from torch_ir.run.watched_values import inner_name
from torch_ir.run.weight_files import WeightSource, weights_from
from torch_ir.verify.copies import copied
from torch_ir.verify.reference_run import values_outside_state_dict
from torch_ir.verify.verification import verify_ir_with_state_dict

_log = logging.getLogger(__name__)


def write_golden(
    ir: IR,
    weights: WeightSource,
    inputs: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    only: Sequence[str] = (),
    every: int = 1,
    max_bytes: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    with_weights: bool = False,
    seed: int = 0,
) -> Path:
    """Run a graph and write the values of all nodes to a folder, atomically.

    With `model`, the graph is verified against it first. `only` selects the nodes of some modules, `every` each n-th
    node and the outputs; a pack of more than `max_bytes` is an error.
    """
    require_graph(ir, "write_golden")
    weights = weights_from(weights)
    digest = hashlib.sha256(ir.to_json().encode()).hexdigest()
    ir = IRExecutor(ir).ir  # with named arguments
    call = (tuple(inputs), dict(kwargs or {}))
    reference = "the graph"
    if every < 1:
        raise ExecutionError(f"every must be at least 1, not {every}")
    if model is not None:
        constants = {**values_outside_state_dict(ir, model), **(constants or {})}
        is_valid, report = verify_ir_with_state_dict(
            ir, weights, model, call[0], constants=constants, test_kwargs=call[1], probe=False
        )
        if not is_valid:
            raise ExecutionError(f"no pack was written: the graph differs from the model: {report.error_message}")
        reference = "the graph, verified against the model on these inputs"
    with NeutralState(new_on_cpu=True), new_pack(Path(path)) as folder:
        shards = Shards(folder, shard_bytes, max_bytes)
        recorder = _Recorder(ir, shards, only, every)
        executor = IRExecutor(ir, constants=constants, watch=recorder)
        given = flatten_call(executor.ir, *copied(call))
        fed = [
            shards.put("inputs", Value(tensor.name, [], tensor.dtype, "", ""), value)
            for tensor, value in zip(ir.graph_inputs, given, strict=True)
        ]
        with torch.random.fork_rng(devices=[]):
            executor.load_weights_from_state_dict(weights)
            if with_weights:
                for key, weight in executor.state.items():
                    shards.put("weights", Value(key, [], "", "", ""), weight)
            torch.manual_seed(seed)
            executor.run(given)
        document = {
            "format": FORMAT,
            "version": VERSION,
            "model_name": ir.model_name,
            "ir": f"sha256:{digest}",
            "reference": reference,
            "seed": seed,
            "notes": recorder.notes(),
            "files": [asdict(shard) for shard in shards.close()],
            "inputs": [asdict(value) for value in fed],
            "values": [asdict(value) for value in recorder.values],
        }
        write_text(folder / INDEX, write_document(document))
    return Path(path)


class _Recorder:
    """Watches a run and writes the selected values to shards."""

    def __init__(self, ir: IR, shards: Shards, only: Sequence[str], every: int) -> None:
        self.shards = shards
        self.places = _places(ir)
        self.chosen = {tensor for tensor, place in self.places.items() if _is_inside(place.node.origin.module, only)}
        if only and not self.chosen:
            known = {place.node.origin.module for place in self.places.values()}
            raise ExecutionError(f"no node belongs to module {', '.join(only)}{did_you_mean(only[0], known)}")
        if every > 1:
            nodes = list(dict.fromkeys(place.node for place in self.places.values()))[every - 1 :: every]
            self.chosen &= {tensor for node in nodes for tensor in node.outputs} | set(ir.returns.inputs)
        self.values: list[Value] = []  # in execution order
        self.left_out: list[str] = []

    def __call__(self, tensor: TensorMeta, value: Any, sizes: Sizes) -> None:
        assert tensor.producer is not None  # a node made the value
        declared, name = tensor.producer.outputs[tensor.index], tensor.name
        if declared not in self.chosen:
            return
        place = self.places[declared]
        if isinstance(value, torch.Tensor) and not is_dense(value):
            self.left_out.append(name)
            return
        node, number = place.node, torch.as_tensor(value)
        if _log.isEnabledFor(logging.INFO):
            done, total = len(self.values) + 1, max(len(self.values) + 1, len(self.chosen))
            where = f" of {node.origin.module}" if node.origin.module else ""
            _log.info("value %d of %d, %s%s", done, total, name, where, extra={"share": (done, total)})
        relative, absolute = tolerances(number.dtype)
        growth = math.sqrt(place.depth)
        record = Value(
            name, [], "", "", "", node.name, node.op_type, *node.origin[:4],
            reads=self._reads(declared, name),
            rtol=relative * growth, atol=absolute * growth * _scale(number), is_random=is_random(node),
        )  # fmt: skip
        self.values.append(self.shards.put("values", record, number))

    def _reads(self, tensor: TensorMeta, name: str) -> list[str]:
        """Return the names in the pack of what the node of a value reads; in functions, without its operands."""
        place = self.places[tensor]
        if not place.is_in_function:
            return [read.name for read in place.node.inputs]
        call = name.rpartition("@")[2]
        path = name.removesuffix(f"/{tensor.name}@{call}")
        return [inner_name(path, read, int(call)) for read in place.node.inputs if read in self.places]

    def notes(self) -> list[str]:
        drawn = [value.name for value in self.values if value.is_random]
        left = len(self.places) - len(self.chosen)
        return [
            *([f"random numbers: {', '.join(drawn)}; another runtime draws different ones"] if drawn else []),
            *([f"not dense, omitted: {', '.join(self.left_out)}"] if self.left_out else []),
            *([f"{left} of {len(self.places)} values were not selected"] if left else []),
        ]


@dataclass(frozen=True)
class _Place:
    """A value of the graph: its node, and the length of the longest path to it."""

    node: OpNode
    depth: int
    is_in_function: bool


def _places(ir: IR) -> dict[TensorMeta, _Place]:
    """Return every value of a graph and its functions, in order."""
    found: dict[TensorMeta, _Place] = {}
    visited: set[str] = set()

    def visit(graph: IR, prefix: str, start: int) -> None:
        for node in graph.nodes:
            depth = 1 + max((found[read].depth if read in found else start for read in node.inputs), default=start)
            for name in values_in(node.attrs):
                if isinstance(name, FunctionRef) and prefix + name not in visited:
                    visited.add(prefix + name)
                    visit(graph.functions[name], f"{prefix}{name}/", depth)
            for tensor in node.outputs:
                found[tensor] = _Place(node, depth, prefix != "")

    visit(ir, "", 0)
    return found


def _is_inside(module: str, only: Sequence[str]) -> bool:
    return not only or any(module == path or module.startswith(f"{path}.") for path in only)


def _scale(value: torch.Tensor) -> float:
    """Return the largest magnitude of an element, at most 1; absolute tolerances scale with it."""
    if not (value.is_floating_point() or value.is_complex()):
        return 0.0
    sizes = value.to(torch.complex128 if value.is_complex() else torch.float64).abs()
    sizes = sizes[sizes.isfinite()]
    return min(1.0, float(sizes.max())) if sizes.numel() else 0.0
