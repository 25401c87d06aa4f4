"""Pieces of random graphs: patterns of passes, and near misses of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests import random_layers as layers
from tests import random_pointwise as pointwise
from tests import random_views as views
from tests.random_draft import DTYPES, FLOATS, Draft, RefusedError
from torch_ir.ir import Dtype, Expr, TensorMeta

Block = Callable[[Draft], Any]


def creation(d: Draft) -> None:
    dtype = Dtype(d.draw.choice(DTYPES))
    shape = d.draw.choice(([4], [3, 4], [], [1], [0, 4], [2, 3, 4]))
    end = Expr("batch") if d.symbols and d.chance(0.5) else 4
    d.draw.choice((
        lambda: d.op("arange", end, dtype=dtype),
        lambda: d.op("arange.start_step", 1, 9, 2),
        lambda: d.op("zeros", shape, dtype=dtype),
        lambda: d.op("ones", shape, dtype=dtype),
        lambda: d.op("full", shape, d.draw.choice((0, 1.5, -2)), dtype=dtype),
        lambda: d.op("full_like", d.pick(), 0),
        lambda: d.op("zeros_like", d.pick()),
        lambda: d.op("ones_like", d.pick()),
        lambda: d.op("new_zeros", d.pick(), shape),
        lambda: d.op("eye", 4),
        lambda: d.op("tril", d.op("ones", [4, 4])),
        lambda: d.op("linspace", 0, 1, 4),
    ))()  # fmt: skip


def chance(d: Draft) -> None:
    """Random operators: their number and order are part of a graph's semantics."""
    x = d.floating()
    has_mask = x.is_static and 0 not in x.shape  # of nothing, the mask is none
    d.draw.choice((
        lambda: d.op("dropout", x, 0.5, True),
        lambda: d.op("dropout", x, 0.5, True),
        lambda: d.op("native_dropout" if has_mask else "dropout", x, 0.5, True),
        lambda: d.op("rand_like", x),
        lambda: d.op("bernoulli.p", x, 0.5),
        lambda: d.op("randn", [4]),
        lambda: d.op("randint", 5, [4]),
    ))()  # fmt: skip


def reduction(d: Draft) -> None:
    x = d.pick()
    keep = d.chance(0.5)
    d.draw.choice((
        lambda: d.op("sum", x),
        lambda: d.op("sum.dim_IntList", x, [d.dim(x)], keep),
        lambda: d.op("sum.dim_IntList", x, [], keep),
        lambda: d.op("sum.dim_IntList", d.op("sum.dim_IntList", x, [d.dim(x)], keep), [-1], keep),
        lambda: d.op("mean.dim", x, [d.dim(x)], keep),
        lambda: d.op("mean", x),
        lambda: d.op("amax", x, [d.dim(x)], keep),
        lambda: d.op("prod", x),
        lambda: d.op("var.correction", x, [d.dim(x)], correction=d.draw.choice((0, 1)), keepdim=keep),
        lambda: d.op("cumsum", x, d.dim(x)),
        lambda: d.op("any", d.sharp()),
        lambda: d.op("all.dim", d.sharp(), -1),
        lambda: d.op("argmax", d.sharp(), -1),
        lambda: d.op("logsumexp", x, [-1]),
        lambda: d.op("mean.dim", d.floating(4), [-1, -2], True),
        lambda: d.op("adaptive_avg_pool2d", d.floating(4), [1, 1]),
    ))()  # fmt: skip


def several_outputs(d: Draft) -> None:
    """Operators with several results, of which not all are read."""
    sharp = d.sharp(lambda t: len(t.shape) > 0)
    made = d.draw.choice((
        lambda: d.op("max.dim", sharp, -1),
        lambda: d.op("topk", sharp, 2),
        lambda: d.op("sort", sharp),
        lambda: d.op("var_mean.correction", d.floating(least=1), [-1], correction=0),
        lambda: d.op("native_layer_norm", (x := d.floating(least=1)), x.shape[-1:], None, None, 1e-5),
        lambda: d.op("aminmax", d.pick(), dim=-1),
        lambda: d.op("split.Tensor", (x := d.pick()), 2, views.fixed_dim(d, x)),
    ))()  # fmt: skip
    if isinstance(made, tuple):
        d.op(d.draw.choice(("neg", "abs", "relu")), d.draw.choice(made))


def join(d: Draft) -> None:
    """Tensors joined and taken apart again, in the same order or in another."""
    x = d.pick()
    alike = [x, *(d.pick(lambda t: t.shape == x.shape and t.dtype == x.dtype) for _ in range(d.draw.choice((0, 1, 2))))]
    if d.chance(0.5):
        parts = d.op("unbind.int", d.op("stack", alike, 0), 0)
        parts = parts if isinstance(parts, tuple) else (parts,)
    else:
        parts = d.op(
            "split.Tensor", (joined := d.op("cat", alike, (dim := views.fixed_dim(d, x)))), d.shape(x)[dim], dim
        )
        parts = parts if isinstance(parts, tuple) else (parts,)
        if d.chance(0.2):
            d.op("neg", joined)
    if d.chance(0.4):
        order = list(parts)
        if d.chance(0.3):
            d.draw.shuffle(order)
        d.op("cat", order, 0)


def written(d: Draft) -> None:
    """Return the capture of writes to parts of a tensor."""
    x = d.pick(lambda t: len(t.shape) > 0)
    dim = d.dim(x)
    kind = d.draw.choice(("slice", "select", "copy", "whole", "fill", "index"))
    if kind in ("slice", "whole"):
        start, end = (0, views.END) if kind == "whole" else (d.draw.choice((0, 1)), d.draw.choice((2, views.END)))
        part = d.op("slice.Tensor", x, dim, start, end)
        new = d.op(d.draw.choice(("neg", "relu", "clone")), part) if d.chance(0.6) else d.op("copy", part, d.pick())
        made = d.op("slice_scatter", x, new, dim, start, end if d.chance(0.9) else 1)
        if d.chance(0.4):
            d.op("slice.Tensor", made, dim, start, end)
    elif kind == "select":
        part = d.op("select.int", x, dim, 0)
        made = d.op("select_scatter", x, d.op("neg", part) if d.chance(0.7) else part, dim, 0)
        if d.chance(0.4):
            d.op("select.int", made, dim, d.draw.choice((0, 1)))
    elif kind == "copy":
        d.op("copy", x, d.pick())
    elif kind == "fill":
        d.op("fill.Scalar", x, d.number())
    else:
        d.op("index_put", x, [d.constant(torch.tensor([0]))], d.pick(lambda t: t.dtype == x.dtype and len(t.shape) < 2))


def look_up(d: Draft) -> None:
    rows = d.draw.choice((3, 4))
    index = d.pick(lambda t: t.dtype in ("int64", "int32")) if d.chance(0.5) else d.op("arange", 3)
    table = d.weight([rows, 4], d.dtype if d.dtype in FLOATS else "float32")
    within = d.op("remainder.Scalar", index, rows)
    d.draw.choice((
        lambda: d.op("embedding", table, within),
        lambda: d.op("index.Tensor", table, [within]),
        lambda: d.op("index_select", table, 0, within),
    ))()  # fmt: skip


def twice(d: Draft) -> None:
    """Something that is there already, once more: the same, with its operands changed over, or almost the same."""
    nodes = [node for node in d.nodes if node.op_type.startswith("aten.") and node.outputs]
    if not nodes:
        raise RefusedError
    node = nodes[int(len(nodes) * d.draw.random() ** 0.5)]
    if len(node.inputs) == 2 and d.chance(0.4) and node.args == ("self", "other"):
        d.op(node.op_type[5:], node.inputs[1], node.inputs[0])
        return
    changed = {}
    for name, value in node.attrs.items():
        if d.chance(0.15) and type(value) in (bool, int, float):
            changed[name] = {bool: not value, int: float(value), float: -value}[type(value)]
    d.again(node, **changed)


def effect(d: Draft) -> None:
    """Checks, which must stay."""
    x = d.pick()
    if d.chance(0.7):
        d.op("_assert_tensor_metadata", x, dtype=Dtype(x.dtype))
    else:
        d.op("_assert_scalar", Expr("batch >= 0") if d.symbols else True, "a size")


def function(d: Draft) -> None:
    """A function of the graph, called once or several times, each time with other weights."""
    if d.outer is not None:
        raise RefusedError
    x = d.pick()
    inner = Draft(d.draw, d.steady, d)
    given = inner._with_value(TensorMeta(inner.names.free(x.name), x.shape, x.dtype, stride=x.stride), d.values[x])
    inner.inputs.append(given)
    blocks = STEADY if d.steady else BLOCKS
    for _ in range(d.draw.randint(1, 5)):
        name = d.draw.choice([name for name in blocks if name not in ("function", "branch", "chance")])
        try:
            blocks[name][0](inner)
        except RefusedError:
            continue
    made = [tensor for node in inner.nodes for tensor in node.outputs]
    if not made:
        raise RefusedError
    ends = [tensor for tensor in made if not tensor._uses][-2:]
    body = inner.body(list(dict.fromkeys([*ends, d.draw.choice([*made, given])] if d.chance(0.2) else ends)))
    name = f"body_{len(d.functions)}"
    d.functions[name] = body
    try:
        for number in range(d.draw.choice((1, 2, 3))):
            first = x if number == 0 else d.pick(lambda t: (t.shape, t.dtype, t.stride) == (x.shape, x.dtype, x.stride))
            others = [d.weight([int(dim) for dim in tensor.shape], tensor.dtype) for tensor in body.graph_inputs[1:]]
            d.call(name, [first, *others])
    except RefusedError:
        if not any(node.attrs.get("function") == name for node in d.nodes):
            del d.functions[name]
        raise


def branch(d: Draft) -> None:
    """Two functions of which one is called."""
    if d.outer is not None:
        raise RefusedError
    x = d.pick(lambda t: t.is_static and t.dtype in FLOATS)
    test = d.op("gt.Scalar", d.op("sum", d.sharp(lambda t: t.dtype in FLOATS)), 0)
    names = [f"branch_{len(d.functions)}", f"branch_{len(d.functions) + 1}"]
    for name in names:
        inner = Draft(d.draw, d.steady, d)
        given = inner._with_value(TensorMeta("x", x.shape, x.dtype), d.values[x])
        inner.inputs.append(given)
        made = inner.op("mul.Tensor", inner.op(d.draw.choice(("relu", "neg", "sigmoid")), given), d.draw.choice((1, 2)))
        if d.chance(0.5):
            made = inner.op("add.Tensor", made, inner.op("relu", given))
        d.functions[name] = inner.body([made])
    try:
        d.branch(test, names, x)
    except RefusedError:
        for name in names:
            del d.functions[name]
        raise


# name -> the piece, and how often it is drawn
BLOCKS: dict[str, tuple[Block, int]] = {
    "unary": (pointwise.unary, 8),
    "jumping": (pointwise.jumping, 2),
    "with_number": (pointwise.with_number, 10),
    "with_alpha": (pointwise.with_alpha, 3),
    "binary": (pointwise.binary, 8),
    "integer_division": (pointwise.integer_division, 2),
    "with_filled": (pointwise.with_filled, 6),
    "with_itself": (pointwise.with_itself, 2),
    "inverses": (pointwise.inverses, 4),
    "creation": (creation, 4),
    "view": (views.view, 12),
    "there_and_back": (views.there_and_back, 8),
    "cast": (pointwise.cast, 6),
    "float_cast": (pointwise.float_cast, 3),
    "copying": (views.copying, 8),
    "chance": (chance, 2),
    "compare": (pointwise.compare, 4),
    "clamp": (pointwise.clamp, 3),
    "reduction": (reduction, 5),
    "several_outputs": (several_outputs, 4),
    "softmax": (layers.softmax, 3),
    "layer_norm": (layers.layer_norm, 5),
    "rms_norm": (layers.rms_norm, 4),
    "activation": (layers.activation, 5),
    "rotary": (layers.rotary, 3),
    "attention": (layers.attention, 4),
    "convolution": (layers.convolution, 9),
    "standalone_norm": (layers.standalone_norm, 3),
    "product": (layers.product, 9),
    "join": (join, 5),
    "written": (written, 6),
    "look_up": (look_up, 2),
    "twice": (twice, 8),
    "effect": (effect, 2),
    "function": (function, 4),
    "branch": (branch, 1),
}
# Operators that do not magnify rounding.
STEADY: dict[str, tuple[Block, int]] = {name: block for name, block in BLOCKS.items() if name != "with_itself"}
