"""Workloads of ZigZag (one YAML file) and problems of Timeloop (a YAML file per layer)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_ir.errors import CommandError
from torch_ir.escaping import as_plain_name, in_yaml
from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import write_text
from torch_ir.simulators.layer_table import Layer, checked_layers, record_of

_CONV = "O[b][g][k][oy][ox]+=W[g][k][c][fy][fx]*I[b][g][c][iy][ix]"
_GEMM = "O[g][b][k]+=W[g][k][c]*I[g][b][c]"
# Timeloop's data spaces: the loops of each dimension; a pair is a sum of products with its coefficients
_SPACES: dict[bool, dict[str, list[str | tuple[str, str]]]] = {
    True: {
        "Weights": ["G", "K", "C", "FY", "FX"],
        "Inputs": ["B", "G", "C", ("OY", "FY"), ("OX", "FX")],
        "Outputs": ["B", "G", "K", "OY", "OX"],
    },
    False: {"Weights": ["G", "K", "C"], "Inputs": ["G", "B", "C"], "Outputs": ["G", "B", "K"]},
}


def to_zigzag(
    ir: IR, path: str | os.PathLike[str], sizes: Mapping[str, int] | None = None, *, bits: int | None = None
) -> dict[str, Any]:
    """Write the layers as a workload; return what was written.

    The precision of an operand is that of its dtype; with `bits`, that many, and twice as many for partial sums.
    """
    if bits is not None and bits < 1:
        raise CommandError(f"bits must be at least 1, not {bits}")
    table = checked_layers(ir, sizes)
    lines = [f"- {in_yaml(_workload(number, layer, bits))}" for number, layer in enumerate(table.layers)]
    write_text(path, "\n".join([*lines, ""]))
    return record_of(table)


def _workload(number: int, layer: Layer, bits: int | None) -> dict[str, Any]:
    inputs, weights, outputs = layer.bits if bits is None else (bits, bits, bits)
    partial = outputs if bits is None else 2 * bits
    sources = dict(zip("IW", (number if source is None else source for source in layer.sources), strict=True))
    moves = [f"i{axis}={layer.stride[at]}*o{axis}+{layer.dilation[at]}*f{axis}" for at, axis in enumerate("yx")]
    return {
        "id": number,
        "name": layer.name,
        "operator_type": "Conv" if layer.is_conv else "Gemm",
        "equation": _CONV if layer.is_conv else _GEMM,
        "dimension_relations": moves if layer.is_conv else [],
        "loop_dims": list(layer.loops),
        "loop_sizes": list(layer.loops.values()),
        "operand_precision": {"I": inputs, "W": weights, "O": partial, "O_final": outputs},
        "operand_source": sources,
    }


def to_timeloop(ir: IR, folder: str | os.PathLike[str], sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Write `<number>_<layer>.yaml` for each layer, as a problem of version 0.4; return what was written."""
    table = checked_layers(ir, sizes)
    digits = len(str(len(table.layers)))
    for number, layer in enumerate(table.layers):
        name = as_plain_name(layer.name)
        write_text(Path(folder) / f"{number:0{digits}}_{name[:100]}.yaml", f"problem: {in_yaml(_problem(layer))}\n")
    return record_of(table)


def _problem(layer: Layer) -> dict[str, Any]:
    steps = {"OY": layer.stride[0], "OX": layer.stride[1], "FY": layer.dilation[0], "FX": layer.dilation[1]}
    spaces = []
    for name, dims in _SPACES[layer.is_conv].items():
        projection = [[[dim]] if isinstance(dim, str) else [[loop, f"{loop}step"] for loop in dim] for dim in dims]
        spaces.append({"name": name, "projection": projection, **({"read_write": True} if name == "Outputs" else {})})
    coefficients = [{"name": f"{loop}step", "default": step} for loop, step in steps.items()] if layer.is_conv else []
    shape = {
        "name": re.sub(r"\W", "_", layer.name),
        "dimensions": list(layer.loops),
        "coefficients": coefficients,
        "data_spaces": spaces,
    }
    return {"version": 0.4, "shape": shape, "instance": dict(layer.loops)}
