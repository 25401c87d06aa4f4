"""Reading a file that nobody vouches for: the structure first, which needs no torch, then everything else."""

from __future__ import annotations

import os

from torch_ir.formats import is_protobuf, load_protobuf
from torch_ir.ir import IR, Limits
from torch_ir.safety.validate import Report, examine_operators, refuse


def load_ir(path: str | os.PathLike[str], limits: Limits = Limits(), *, trusted: bool = False) -> IR:
    """Read a graph from a file, protobuf by its suffix, else JSON or text, and check it; no shapes if `trusted`."""
    ir = load_protobuf(path, limits) if is_protobuf(path) else IR.load(path, limits)
    report = Report()
    refuse(examine_operators(ir, report, trusted=trusted), report)
    return ir


def deserialize_ir(text: str, limits: Limits = Limits(), *, trusted: bool = False) -> IR:
    """The graph that JSON text holds, checked as that of a file."""
    ir = IR.from_json(text, limits)
    report = Report()
    refuse(examine_operators(ir, report, trusted=trusted), report)
    return ir
