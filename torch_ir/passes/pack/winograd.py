"""3 x 3 convolutions by Winograd's algorithm: a quarter of the products, at the cost of sums before and after them.

The image is cut into overlapping 6 x 6 tiles, each yielding 4 x 4 output positions. Tiles are transformed by sums of
their rows and columns; in the transformed basis the convolution is 36 matrix products, one per tile position, which is
a 1 x 1 convolution in 36 groups. Weights are transformed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_ir.analysis.shapes.open_sizes import is_inside
from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.ir import IR, OpNode, Param, TensorMeta
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.passes.pack.convolutions import PACKED, objection, packed_bias
from torch_ir.passes.pass_registry import named_pass
from torch_ir.passes.weights.affine import each
from torch_ir.rewrite import SPREADS, Builder, Rule, op, rewrite, rule

TILE, STEP = 6, 4
# Costs in multiply-adds, measured on x86 with AVX-512.
_PER_SUM = 60  # to transform an element of a tile, either way
_PER_FAR_SUM = 120  # the same if the tiles exceed the caches
_PER_WEIGHT = 24  # to read a weight from memory
_PER_CALL = 8_000_000  # overhead of all the calls that replace one convolution
_CACHED = 1_000_000  # elements of tiles
# F(4 x 4, 3 x 3) of Lavin and Gray, with the points 0, 1, -1, 2, -2 and infinity.
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
_ONES = 1  # the point that contributes once to every output position: the bias is added there
_MATRICES = {"tiles": _OF_TILES, "weights": _OF_WEIGHTS, "results": _OF_RESULTS}
Matrices = dict[str, TensorMeta]


@named_pass("winograd", may_raise=["nodes", "bytes", "peak"])
def winograd(ir: IR) -> int:
    """Compute 3 x 3 convolutions by Winograd's algorithm where it saves time; results differ by about 1e-5.

    before   conv2d(x, w, b, padding=[1, 1])
    after    a 1 x 1 convolution in 36 groups over the tiles of x, with w in their basis, transformed back

    A NaN or infinity in x makes all results of its tile NaN.
    """
    if is_inside():
        return 0
    matrices = {name: _constant(ir, name, rows) for name, rows in _MATRICES.items()}
    count = rewrite(ir, [_rule_with(matrices)], Knowledge.of(ir))
    ir.params += [matrix for matrix in matrices.values() if matrix.consumers and matrix not in ir.params]
    return count


def _constant(ir: IR, name: str, rows: Sequence[Sequence[float]]) -> TensorMeta:
    """Return a matrix as a constant: the graph's own if it has it, else a new one under free names."""
    data = from_tensor(torch.tensor(rows, dtype=torch.float32, device="cpu"))
    for param in ir.params:
        if param.param == Param((f"winograd.{name}",), "constant", data):
            return param
    made = TensorMeta(fresh(f"winograd_{name}", {tensor.name for tensor in ir.tensors()}), data.shape, data.dtype)
    keys = {key for param in ir.params if param.param for key in param.param.keys}
    made.param = Param((fresh(f"winograd.{name}", keys),), "constant", data)
    return made


def _rule_with(matrices: Matrices) -> Rule:
    """Return the rule with the constants it needs, which the graph may not have yet."""

    @rule(op("aten.conv2d.default"))
    def by_winograd(g: Builder, node: OpNode) -> object:
        """conv2d(x, w, b)  ->  results(_convolution_pointwise(tiles(x), weights(w), b, groups=36))"""
        if g.is_weight(node["input"]) or not _is_plain_3x3(node):
            return None
        g.may_change(SPREADS)
        return objection(g, node) or _unsuited(node) or _written_out(g, node, matrices)

    return by_winograd


def _is_plain_3x3(node: OpNode) -> bool:
    """Whether this is a 3 x 3 convolution with stride 1, dilation 1 and one group."""
    steps = (each(node["stride"], 2), each(node["dilation"], 2), node["groups"])
    return node["weight"].shape[2:] == (3, 3) and steps == ([1, 1], [1, 1], 1)


def _unsuited(node: OpNode) -> str:
    """Return why direct computation is better, or ""."""
    if node.output.dtype != "float32":
        return f"in {node.output.dtype}, Winograd's sums would lose too much precision"
    if not node["input"].is_static:
        return "its sizes, and so the number of tiles, are symbolic"
    if _saved(node) <= 0:
        return "the sums before and after would take longer than the saved products"
    return ""


def _saved(node: OpNode) -> int:
    """Return the multiply-adds saved, less the cost of transforms, weights and calls."""
    batch, makes, height, width = _sizes(node.output)
    reads = _sizes(node["weight"])[1]
    places, tiles = batch * height * width, TILE * TILE * batch * _tiles(height) * _tiles(width)
    products = (9 * places - tiles) * makes * reads
    sums = tiles * (makes + reads) * (_PER_SUM if tiles * reads <= _CACHED else _PER_FAR_SUM)
    weights = (TILE * TILE - 9) * makes * reads * _PER_WEIGHT
    return products - sums - weights - _PER_CALL


def _sizes(tensor: TensorMeta) -> list[int]:
    """Return the sizes of a tensor with static shape."""
    return [size for size in tensor.shape if isinstance(size, int)]


def _tiles(size: int) -> int:
    """Return the number of tiles that cover so many output positions."""
    return -(-size // STEP)


def _written_out(g: Builder, node: OpNode, matrices: Matrices) -> TensorMeta:
    batch, channels, height, width = _sizes(node.output)
    rows, columns = _tiles(height), _tiles(width)
    tiles = _tiles_of(g, node, matrices["tiles"], rows, columns)
    made = g.op(
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
    """Return the input as transformed tiles: an image with one pixel per tile and 36 times the channels."""
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
    """Transform the products of the tiles back into an image."""
    batch, rows, columns, channels = shape
    tiles = _shaped(g, _permuted(g, made, 0, 2, 3, 1), batch * rows * columns, TILE * TILE, channels)
    both = g.op("aten.kron.default", self=matrix, other=matrix)  # rows and columns at once, which is as fast here
    apart = _shaped(g, _left(g, both, tiles), batch, rows, columns, STEP, STEP, channels)
    image = _shaped(g, _permuted(g, apart, 0, 1, 3, 2, 4, 5), batch, rows * STEP, columns * STEP, channels)
    result = _permuted(g, image, 0, 3, 1, 2)
    for dim, size in zip((2, 3), sizes, strict=True):
        if result.shape[dim] != size:
            result = g.op("aten.slice.Tensor", self=result, dim=dim, start=0, end=size)
    return result


def _weight(g: Builder, weight: TensorMeta, matrix: TensorMeta, size: Any) -> TensorMeta:
    """Return a weight in the basis of tiles, packed as 36 groups with all channels each."""
    makes, reads = _sizes(weight)[:2]
    half = g.op("aten.matmul.default", self=matrix, other=weight)
    turned = g.op("aten.matmul.default", self=half, other=_permuted(g, matrix, 1, 0))
    grouped = _shaped(g, _permuted(g, turned, 2, 3, 0, 1), TILE * TILE * makes, reads, 1, 1)
    return g.op("mkldnn._reorder_convolution_weight.default", self=grouped, groups=TILE * TILE, input_size=list(size))


def _bias(g: Builder, bias: TensorMeta | None, channels: int) -> TensorMeta | None:
    """Return the bias for the one group that contributes once to every output position."""
    if bias is None:
        return None
    before = (_ONES * TILE + _ONES) * channels
    after = TILE * TILE * channels - before - channels
    return packed_bias(g, g.op("aten.constant_pad_nd.default", self=bias, pad=[before, after]))


def _left(g: Builder, matrix: TensorMeta, batch: TensorMeta) -> TensorMeta:
    """Return the products of a matrix with each matrix of a batch."""
    many = g.op("aten.expand.default", self=matrix, size=[batch.shape[0], -1, -1])
    return g.op("aten.bmm.default", self=many, mat2=batch)


def _permuted(g: Builder, tensor: TensorMeta, *dims: int) -> TensorMeta:
    return g.op("aten.permute.default", self=tensor, dims=list(dims))


def _shaped(g: Builder, tensor: TensorMeta, *shape: Any) -> TensorMeta:
    return g.op("aten.reshape.default", self=tensor, shape=list(shape))
