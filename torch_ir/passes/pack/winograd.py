"""Convolutions of 3 x 3 by Winograd's algorithm: a quarter of the products, for sums before and after them.

The image is cut into overlapping tiles of 6 x 6, each of which gives 4 x 4 places of the result. Tiles are taken to
another basis by sums of their rows and of their columns. There, a convolution is a product for each of the 36 places
of a tile: 36 products of matrices, which is a convolution of 1 x 1 in 36 groups. Weights are taken to that basis once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_ir.analysis.shapes.open_sizes import is_inside
from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.ir import IR, OpNode, Param, TensorMeta
from torch_ir.ir.regroup.functions import fresh
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.passes.pack.convolutions import PACKED, each, objection, packed_bias
from torch_ir.passes.pass_registry import named_pass
from torch_ir.rewrite import Builder, Rule, op, rewrite, rule

TILE, STEP = 6, 4
# How many multiply-adds take as long, measured on x86 with AVX-512.
_PER_SUM = 60  # an element of a tile, taken to the other basis or back
_PER_FAR_SUM = 120  # the same where tiles are too many for the caches
_PER_WEIGHT = 24  # a weight, read from memory
_PER_CALL = 8_000_000  # all the calls that one convolution becomes
_CACHED = 1_000_000  # elements of tiles
# Polynomials at the points 0, 1, -1, 2, -2 and infinity: F(4 x 4, 3 x 3) of Lavin and Gray.
_OF_TILES = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_OF_WEIGHTS = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_OF_RESULTS = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
_ONES = 1  # the point at which every place of a result is counted once, so that a bias is added there
_MATRICES = {"tiles": _OF_TILES, "weights": _OF_WEIGHTS, "results": _OF_RESULTS}
Matrices = dict[str, TensorMeta]


@named_pass("winograd", may_raise=["nodes", "bytes", "peak"])
def winograd(ir: IR) -> int:
    """Compute convolutions of 3 x 3 by Winograd's algorithm where it saves time; results differ by some 1e-5.

    before   conv2d(x, w, b, padding=[1, 1])
    after    the results of a convolution of 1 x 1 in 36 groups, over the tiles of x, with w in their basis
    """
    if is_inside():
        return 0
    matrices = {name: _constant(ir, name, rows) for name, rows in _MATRICES.items()}
    count = rewrite(ir, [_rule_with(matrices)], Knowledge.of(ir))
    ir.params += [matrix for matrix in matrices.values() if matrix.consumers and matrix not in ir.params]
    return count


def _constant(ir: IR, name: str, rows: Sequence[Sequence[float]]) -> TensorMeta:
    """A matrix as a constant: one that the graph has already, or a new one under names that are free."""
    data = from_tensor(torch.tensor(rows, dtype=torch.float32, device="cpu"))
    for param in ir.params:
        if param.param == Param((f"winograd.{name}",), "constant", data):
            return param
    made = TensorMeta(fresh(f"winograd_{name}", {tensor.name for tensor in ir.tensors()}), data.shape, data.dtype)
    keys = {key for param in ir.params if param.param for key in param.param.keys}
    made.param = Param((fresh(f"winograd.{name}", keys),), "constant", data)
    return made


def _rule_with(matrices: Matrices) -> Rule:
    """The rule, which needs constants that the graph may not have yet."""

    @rule(op("aten.conv2d.default"))
    def by_winograd(g: Builder, node: OpNode) -> object:
        """conv2d(x, w, b)  ->  results(_convolution_pointwise(tiles(x), weights(w), b, groups=36))"""
        if g.is_weight(node["input"]) or not _is_of_its_kind(node):
            return None
        return objection(g, node) or _unsuited(node) or _written_out(g, node, matrices)

    return by_winograd


def _is_of_its_kind(node: OpNode) -> bool:
    """Whether a convolution is one of 3 x 3, of every place and all channels."""
    steps = (each(node["stride"], 2), each(node["dilation"], 2), node["groups"])
    return node["weight"].shape[2:] == (3, 3) and steps == ([1, 1], [1, 1], 1)


def _unsuited(node: OpNode) -> str:
    """Why a convolution of 3 x 3 is better computed as it is, or nothing."""
    if node.output.dtype != "float32":
        return f"in {node.output.dtype}, Winograd's sums would lose too much"
    if not node["input"].is_static:
        return "its sizes are open, and with them the number of tiles"
    if _saved(node) <= 0:
        return "sums before and after them would take longer than the products that are saved"
    return ""


def _saved(node: OpNode) -> int:
    """How many multiply-adds the algorithm saves, less those that take as long as what it does instead."""
    batch, makes, height, width = _sizes(node.output)
    reads = _sizes(node["weight"])[1]
    places, tiles = batch * height * width, TILE * TILE * batch * _tiles(height) * _tiles(width)
    products = (9 * places - tiles) * makes * reads
    sums = tiles * (makes + reads) * (_PER_SUM if tiles * reads <= _CACHED else _PER_FAR_SUM)
    weights = (TILE * TILE - 9) * makes * reads * _PER_WEIGHT
    return products - sums - weights - _PER_CALL


def _sizes(tensor: TensorMeta) -> list[int]:
    """The sizes of a tensor that has no open ones."""
    return [size for size in tensor.shape if isinstance(size, int)]


def _tiles(size: int) -> int:
    """How many tiles give so many places of a result."""
    return -(-size // STEP)


def _written_out(g: Builder, node: OpNode, matrices: Matrices) -> TensorMeta:
    batch, channels, height, width = _sizes(node.output)
    rows, columns = _tiles(height), _tiles(width)
    tiles = _tiles_of(g, node, matrices["tiles"], rows, columns)
    made: TensorMeta = g.op(
        PACKED,
        X=tiles,
        W=_weight(g, node["weight"], matrices["weights"], tiles.shape),
        B=_bias(g, node["bias"], channels),
        padding=[0, 0],
        stride=[1, 1],
        dilation=[1, 1],
        groups=TILE * TILE,
        attr="none",
        scalars=[],
        algorithm="",
    )
    return _results(g, made, matrices["results"], (batch, rows, columns, channels), (height, width))


def _tiles_of(g: Builder, node: OpNode, matrix: TensorMeta, rows: int, columns: int) -> TensorMeta:
    """What is read, cut into tiles in the other basis: an image with a place for each, 36 times as many channels."""
    batch, channels, height, width = _sizes(node["input"])
    top, left = each(node["padding"], 2)
    tall, wide = rows * STEP + TILE - STEP, columns * STEP + TILE - STEP
    padding = [left, wide - left - width, top, tall - top - height]
    padded = g.op("aten.constant_pad_nd.default", self=node["input"], pad=padding)
    image = _permuted(g, padded, 0, 2, 3, 1)
    lines = _permuted(g, g.op("aten.unfold.default", self=image, dimension=1, size=TILE, step=STEP), 0, 1, 4, 2, 3)
    lines = _shaped(g, lines, batch * rows, TILE, wide * channels)
    lines = _shaped(g, _left(g, matrix, lines), batch * rows, TILE, wide, channels)
    cut = _permuted(g, g.op("aten.unfold.default", self=lines, dimension=2, size=TILE, step=STEP), 0, 2, 1, 4, 3)
    cut = _left(g, matrix, _shaped(g, cut, batch * rows * columns * TILE, TILE, channels))
    return _permuted(g, _shaped(g, cut, 1, batch * rows * columns, 1, TILE * TILE * channels), 0, 3, 1, 2)


def _results(
    g: Builder, made: TensorMeta, matrix: TensorMeta, shape: tuple[int, int, int, int], sizes: tuple[int, int]
) -> TensorMeta:
    """The image that products of tiles give."""
    batch, rows, columns, channels = shape
    tiles = _shaped(g, _permuted(g, made, 0, 2, 3, 1), batch * rows * columns, TILE * TILE, channels)
    both = g.op("aten.kron.default", self=matrix, other=matrix)  # of rows and columns at once, which is as quick here
    apart = _shaped(g, _left(g, both, tiles), batch, rows, columns, STEP, STEP, channels)
    image = _shaped(g, _permuted(g, apart, 0, 1, 3, 2, 4, 5), batch, rows * STEP, columns * STEP, channels)
    result = _permuted(g, image, 0, 3, 1, 2)
    for dim, size in zip((2, 3), sizes, strict=True):
        if result.shape[dim] != size:
            result = g.op("aten.slice.Tensor", self=result, dim=dim, start=0, end=size)
    return result


def _weight(g: Builder, weight: TensorMeta, matrix: TensorMeta, size: Any) -> TensorMeta:
    """A weight in the basis of tiles, packed: 36 groups that have the channels of the convolution each."""
    makes, reads = _sizes(weight)[:2]
    half = g.op("aten.matmul.default", self=matrix, other=weight)
    turned = g.op("aten.matmul.default", self=half, other=_permuted(g, matrix, 1, 0))
    grouped = _shaped(g, _permuted(g, turned, 2, 3, 0, 1), TILE * TILE * makes, reads, 1, 1)
    made: TensorMeta = g.op(
        "mkldnn._reorder_convolution_weight.default", self=grouped, groups=TILE * TILE, input_size=list(size)
    )
    return made


def _bias(g: Builder, bias: TensorMeta | None, channels: int) -> TensorMeta | None:
    """A bias for the one of the 36 groups that every place of the results counts once."""
    if bias is None:
        return None
    before = (_ONES * TILE + _ONES) * channels
    after = TILE * TILE * channels - before - channels
    return packed_bias(g, g.op("aten.constant_pad_nd.default", self=bias, pad=[before, after]))


def _left(g: Builder, matrix: TensorMeta, batch: TensorMeta) -> TensorMeta:
    """The products of a matrix with each of a batch."""
    many = g.op("aten.expand.default", self=matrix, size=[batch.shape[0], -1, -1])
    made: TensorMeta = g.op("aten.bmm.default", self=many, mat2=batch)
    return made


def _permuted(g: Builder, tensor: TensorMeta, *dims: int) -> TensorMeta:
    made: TensorMeta = g.op("aten.permute.default", self=tensor, dims=list(dims))
    return made


def _shaped(g: Builder, tensor: TensorMeta, *shape: Any) -> TensorMeta:
    made: TensorMeta = g.op("aten.reshape.default", self=tensor, shape=list(shape))
    return made
