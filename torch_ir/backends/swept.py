"""The operators and dtypes in which each back end was compared with eager: `swept.json`, by tests/backend_sweep.

Fixed and open sizes are compared separately, since runtimes have other code for open ones. A graph with anything else
is compared with the executor when it is compiled, as is every graph where another version of the back end is installed
than the one that was compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path

import torch

from torch_ir.ir import IR, OpNode
from torch_ir.ops.prepare_run import with_calls_inline

TABLE = Path(__file__).parent / "swept.json"


@dataclass(frozen=True)
class Swept:
    """Dtype combinations in which one back end was compared with eager, by operator: `bool float32, float32 open`."""

    package: str
    version: str
    operators: Mapping[str, str]

    @cached_property
    def installed(self) -> str:
        """The installed version, without a build such as `+cpu`."""
        return metadata.version(self.package).partition("+")[0]

    def has(self, node: OpNode) -> bool:
        """Whether an operator was compared in exactly the dtypes of a node, and with open sizes if it has such."""
        return dtypes_of(node) in self.operators.get(node.op_type, "").split(", ")


def dtypes_of(node: OpNode) -> str:
    """Return the dtypes of a node's inputs and outputs, and whether one of them has an open size."""
    tensors = (*node.inputs, *node.outputs)
    return combination((tensor.dtype for tensor in tensors), any(not tensor.is_static for tensor in tensors))


def combination(dtypes: Iterable[str], is_open: bool) -> str:
    """Return each dtype once, in alphabetical order, then `open` if a size is open."""
    return " ".join([*sorted(set(dtypes)), *(["open"] if is_open else [])])


@cache
def tables() -> Mapping[str, Swept]:
    """Return what was compared, by back end; `torch` is the executor itself, and others are the user's own."""
    found = json.loads(TABLE.read_text(encoding="utf-8"))
    return {backend: Swept(**record) for backend, record in found.items()}


def other_version(backend: str) -> str:
    """Return a sentence if another version of a back end is installed than the one that was compared, else ""."""
    swept = tables().get(backend)
    if swept is None or swept.installed == swept.version:
        return ""
    return (
        f"back end {backend!r} was compared with eager for {swept.package} {swept.version}, not for {swept.installed}"
    )


def is_elsewhere(ir: IR) -> bool:
    """Whether a graph runs on another device than the CPU, where everything was compared."""
    return torch.device(ir.device).type != "cpu"


def unswept(ir: IR, backend: str) -> list[str]:
    """Return the operators of a graph, with dtypes, in which a back end was never compared with eager."""
    swept = tables().get(backend)
    if swept is None:
        return []
    current = not other_version(backend) and not is_elsewhere(ir)
    nodes = with_calls_inline(ir).all_nodes()
    return [
        *dict.fromkeys(
            f"{node.op_type} ({dtypes_of(node)})"
            for node in nodes
            if node.outputs and not (current and swept.has(node))
        )
    ]
