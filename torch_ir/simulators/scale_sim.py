"""SCALE-Sim's topology file: a CSV table of layers, as convolutions or as matrix products (`-i gemm`).

A convolution of several groups has a row per group, a depth-wise one a row whose name ends in `DP`, which SCALE-Sim
repeats per channel. What SCALE-Sim's convolutions cannot say, several images, dilation, and two different strides, and
every matrix product, is a row in the form into which SCALE-Sim itself turns matrix products.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from torch_ir.errors import GraphError
from torch_ir.escaping import as_plain_name
from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import write_text
from torch_ir.simulators.layer_table import Layer, checked_layers, record_of

_CONV = "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,"
_GEMM = "Layer, M, N, K,"
_DEPTH_WISE = "DP"
_MOST_ROWS = 1_000_000


def to_scale_sim(
    ir: IR, path: str | os.PathLike[str], sizes: Mapping[str, int] | None = None, *, gemm: bool = False
) -> dict[str, Any]:
    """Write the layers as a topology file, with `gemm` all as matrix products; return what was written."""
    table = checked_layers(ir, sizes)
    made = (row for layer in table.layers for row in (_products(layer) if gemm else _convolutions(layer)))
    rows = list(islice(made, _MOST_ROWS + 1))
    if len(rows) > _MOST_ROWS:
        raise GraphError(f"the layers have more than {_MOST_ROWS:,} independent products, each of which is a row")
    lines = [", ".join(map(str, row)) + "," for row in rows]
    write_text(path, "\n".join([_GEMM if gemm else _CONV, *lines, ""]))
    return {**record_of(table), "rows": len(rows)}


def _convolutions(layer: Layer) -> Iterator[tuple[str | int, ...]]:
    loops, stride = layer.loops, layer.stride
    if not layer.is_conv or loops["B"] > 1 or stride[0] != stride[1] or layer.dilation != (1, 1):
        yield from ((name, m, k, 1, k, 1, n, 1) for name, m, n, k in _products(layer))
        return
    place = layer.padded_input(0), layer.padded_input(1), loops["FY"], loops["FX"]
    if loops["C"] == 1 and loops["G"] > 1:
        yield f"{_name(layer)}_{_DEPTH_WISE}", *place, loops["G"], loops["K"], stride[0]
        return
    for name in _names(layer, loops["G"]):
        yield name, *place, loops["C"], loops["K"], stride[0]


def _products(layer: Layer) -> Iterator[tuple[str, int, int, int]]:
    """Yield the rows, columns and depth of the products; a convolution multiplies its patches with its filters."""
    loops = layer.loops
    rows, depth = loops["B"], loops["C"]
    if layer.is_conv:
        rows, depth = rows * loops["OY"] * loops["OX"], depth * loops["FY"] * loops["FX"]
    for name in _names(layer, loops["G"]):
        yield name, rows, loops["K"], depth


def _names(layer: Layer, count: int) -> Iterator[str]:
    yield from [_name(layer)] if count == 1 else (f"{_name(layer)}.{number}" for number in range(count))


def _name(layer: Layer) -> str:
    """Return the name without commas, and without the letters that mean a depth-wise layer."""
    return as_plain_name(layer.name).replace(_DEPTH_WISE, _DEPTH_WISE.lower())
