"""Read an untrusted file: first its structure, which needs no torch, then the operators."""

from __future__ import annotations

import os

from torch_ir.formats import is_protobuf, load_protobuf
from torch_ir.ir import IR, Limits
from torch_ir.ir.checks.work import working
from torch_ir.safety.validate import Report, examine_operators, refuse


def load_ir(path: str | os.PathLike[str], limits: Limits = Limits(), *, trusted: bool = False) -> IR:
    """Read and check a graph from a protobuf, JSON or text file; if `trusted`, shapes are not checked."""
    return _checked(load_protobuf(path, limits) if is_protobuf(path) else IR.load(path, limits), trusted)


def deserialize_ir(text: str, limits: Limits = Limits(), *, trusted: bool = False) -> IR:
    """Read a graph from JSON text, and check it like a file."""
    return _checked(IR.from_json(text, limits), trusted)


def _checked(ir: IR, trusted: bool) -> IR:
    if trusted:
        ir.limits = None
    report = Report()
    with working(ir):
        refuse(examine_operators(ir, report, trusted=trusted), report)
    return ir
