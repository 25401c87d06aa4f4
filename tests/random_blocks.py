"""Pieces of random graphs: what passes look for, and what almost looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests import random_layers as layers
from tests.random_draft import DTYPES, FLOATS, Draft, RefusedError
from torch_ir.ir import Dtype, Expr, MemoryFormat, TensorMeta
from torch_ir.ops.names import TORCH_DTYPES

Block = Callable[[Draft], Any]
SMOOTH = (
    "neg", "relu", "abs", "sigmoid", "tanh", "sin", "cos", "silu", "gelu", "square", "softplus", "exp", "positive",
    "hardtanh", "sqrt", "rsqrt", "reciprocal", "log1p", "erf", "relu6", "leaky_relu", "elu", "expm1", "mish",
    "hardswish",
)  # fmt: skip
WITH_NUMBER = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "mul.Scalar", "add.Scalar", "rsub.Scalar", "div.Scalar",
    "sub.Scalar", "pow.Tensor_Scalar",
)  # fmt: skip
PAIRS = (
    ("neg", "neg"), ("relu", "relu"), ("exp", "log"), ("log", "exp"), ("abs", "abs"), ("reciprocal", "reciprocal"),
    ("square", "sqrt"), ("sqrt", "square"), ("conj_physical", "conj_physical"), ("logical_not", "logical_not"),
    ("relu", "abs"), ("neg", "abs"), ("bitwise_not", "bitwise_not"),
)  # fmt: skip
END = 9223372036854775807  # of a slice that has none
BOUNDS = ((None, 0, 1, -2), (None, 2, -1, END), (1, 1, 2))
JUMPING = ("sign", "floor", "ceil", "round", "trunc", "logical_not", "isnan", "isinf", "signbit", "bitwise_not", "frac")


def unary(d: Draft) -> TensorMeta:
    made: TensorMeta = d.op(d.draw.choice(SMOOTH), d.pick())
    return made


def jumping(d: Draft) -> None:
    d.op(d.draw.choice(JUMPING), d.sharp())


def with_number(d: Draft) -> TensorMeta:
    """x + 0, x * 1, x / -1, 0 - x, x ** 1, also several in a row."""
    made = d.pick()
    for _ in range(d.draw.choice((1, 1, 2, 3))):
        name = d.draw.choice(WITH_NUMBER)
        made = d.op(name, made, d.number())
    return made


def with_alpha(d: Draft) -> None:
    made = d.pick()
    d.op(d.draw.choice(("add.Tensor", "sub.Tensor")), made, d.pick(), alpha=d.draw.choice((0, 1, 2, -1)))


def binary(d: Draft) -> TensorMeta:
    name = d.draw.choice(("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "atan2"))
    made: TensorMeta = d.op(name, d.pick(), d.pick())
    return made


def integer_division(d: Draft) -> None:
    name = d.draw.choice(("floor_divide", "remainder.Tensor", "div.Tensor_mode", "fmod.Tensor"))
    more = {"rounding_mode": d.draw.choice(("floor", "trunc"))} if name == "div.Tensor_mode" else {}
    d.op(name, d.sharp(), d.sharp() if d.chance(0.5) else d.draw.choice((1, 2, -3, 1.0)), **more)


def _filled(d: Draft, shape: list[int], dtype: str) -> Any:
    """A tensor of one number, as a constant or as what an operator makes."""
    number = d.draw.choice((0, 1, -1, -0.0, 2))
    if d.chance(0.4):
        return d.constant(torch.full(shape, number, dtype=torch.float64).to(TORCH_DTYPES[dtype]))
    if number in (0, 1) and d.chance(0.5):
        return d.op("ones" if number else "zeros", shape, dtype=Dtype(dtype))
    if not shape and d.chance(0.5):
        return d.op("scalar_tensor", number, dtype=Dtype(dtype))
    return d.op("full", shape, number, dtype=Dtype(dtype))


def with_filled(d: Draft) -> None:
    """x + zeros and its kin, where the zeros may be of another dtype, or larger than x."""
    x = d.pick()
    sizes = d.shape(x)
    shapes = [[], [1], sizes[-1:], sizes, [2, *sizes], [1, *sizes]]
    shape = d.draw.choice(shapes if all(isinstance(dim, int) for dim in x.shape) else shapes[:2])
    other = _filled(d, shape, x.dtype if d.chance(0.7) else d.draw.choice(DTYPES))
    pair = (x, other) if d.chance(0.6) else (other, x)
    d.op(d.draw.choice(("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "pow.Tensor_Tensor")), *pair)


def with_itself(d: Draft) -> None:
    """x - x, x / x, x + x, maximum(x, x)."""
    x = d.pick()
    d.op(d.draw.choice(("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "eq.Tensor")), x, x)


def inverses(d: Draft) -> None:
    """exp(log(x)), neg(neg(x)), relu(relu(x)), and pairs that are not."""
    made = d.pick()
    for name in d.draw.choice(PAIRS):
        made = d.op(name, made)


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


def _viewed(d: Draft, x: TensorMeta) -> Any:
    sizes, numbers = d.sizes(x), d.shape(x)
    rank = len(sizes)
    pick: list[Callable[[], Any]] = [
        lambda: d.op("view", x, [-1]),
        lambda: d.op("reshape", x, [-1]),
        lambda: d.op("view", x, sizes),
        lambda: d.op("reshape", x, [*sizes, 1] if d.chance(0.5) else [1, *sizes]),
        lambda: d.op("flatten.using_ints", x, 0 if d.chance(0.5) else max(rank - 2, 0), -1),
        lambda: d.op("unsqueeze", x, d.draw.randint(-rank - 1, rank)),
        lambda: d.op("squeeze", x),
        lambda: d.op("squeeze.dim", x, d.dim(x)),
        lambda: d.op("transpose.int", x, d.dim(x), d.dim(x)),
        lambda: d.op("permute", x, d.draw.sample(range(rank), rank)),
        lambda: d.op("expand", x, [2, *sizes] if d.chance(0.5) else [2 if size == 1 else size for size in sizes]),
        lambda: d.op("expand", x, [-1] * rank),
        lambda: d.op("slice.Tensor", x, d.dim(x), *(d.draw.choice(some) for some in BOUNDS)),
        lambda: d.op("slice.Tensor", x, d.dim(x), 0, END),
        lambda: d.op("select.int", x, (dim := _fixed_dim(d, x)), d.draw.randrange(max(numbers[dim], 1))),
        lambda: d.op("select.int", x, d.dim(x), 0),
        lambda: d.op("split.Tensor", x, d.draw.choice((1, 2, 4)), _fixed_dim(d, x)),
        lambda: d.op("split_with_sizes", x, _parts(d, x, (dim := _fixed_dim(d, x))), dim),
        lambda: d.op("chunk", x, 2, _fixed_dim(d, x)),
        lambda: d.op("unbind.int", x, _fixed_dim(d, x)),
        lambda: d.op("narrow", x, d.dim(x), 0, 1),
        lambda: d.op("t", x),
        lambda: d.op("view", x, [-1, *sizes[2:]]),
        lambda: d.op("diagonal", x),
        lambda: d.op("view.dtype", x, Dtype(d.draw.choice(("int32", "float32", "int16")))),
        lambda: d.op("unflatten.int", x, -1, [2, -1]),
    ]  # fmt: skip
    try:
        return d.draw.choice(pick)()
    except IndexError:
        raise RefusedError from None


def _fixed_dim(d: Draft, x: TensorMeta) -> int:
    fixed = [dim for dim, size in enumerate(x.shape) if isinstance(size, int)]
    if not fixed:
        raise RefusedError
    return d.draw.choice(fixed)


def _parts(d: Draft, x: TensorMeta, dim: int) -> list[int]:
    size = d.shape(x)[dim]
    first = d.draw.randint(0, size)
    return [first, size - first]


def view(d: Draft) -> None:
    """One view, or one of a view of a view."""
    made = d.pick()
    for _ in range(d.draw.choice((1, 1, 2, 3))):
        made = _viewed(d, made)
        if isinstance(made, tuple):
            made = d.draw.choice(made or (d.pick(),))


def there_and_back(d: Draft) -> Any:
    """Two views that cancel, or almost."""
    x = d.pick(lambda t: len(t.shape) > 0)
    rank, sizes = len(x.shape), d.sizes(x)
    kind = d.draw.choice(("permute", "transpose", "reshape", "squeeze", "expand", "contiguous"))
    if kind == "permute":
        order = d.draw.sample(range(rank), rank)
        back = [order.index(dim) for dim in range(rank)]
        made = d.op("permute", x, order)
        made = _between(d, made)
        return d.op("permute", made, back if d.chance(0.7) else order)
    if kind == "transpose":
        one, two = d.dim(x), d.dim(x)
        made = _between(d, d.op("transpose.int", x, one, two))
        return d.op("transpose.int", made, *d.draw.choice(((one, two), (two, one), (one, d.dim(x)))))
    if kind == "reshape":
        made = _between(d, d.op(d.draw.choice(("view", "reshape")), x, [-1] if d.chance(0.5) else [-1, 2]))
        return d.op(d.draw.choice(("view", "reshape")), made, sizes if d.chance(0.7) else [*sizes, 1])
    if kind == "squeeze":
        dim = d.draw.randint(0, rank)
        made = _between(d, d.op("unsqueeze", x, dim))
        return d.op("squeeze.dim", made, dim if d.chance(0.7) else d.draw.randint(0, rank))
    if kind == "expand":
        return d.op("select.int", d.op("expand", x, [2, *sizes]), 0, d.draw.choice((0, 1)))
    return d.op("contiguous", d.op("permute", x, d.draw.sample(range(rank), rank)))


def _between(d: Draft, x: TensorMeta) -> Any:
    """Now and then, something stands between two nodes that belong together."""
    if d.chance(0.2):
        return d.op("relu", x)
    if d.chance(0.1):
        return d.op("contiguous", x)
    return d.op("clone", x) if d.chance(0.1) else x


def cast(d: Draft) -> TensorMeta:
    """Casts one after another: to the same dtype, to a wider one and back, to a narrower one and back."""
    made = d.sharp()
    kinds = FLOATS if d.steady and made.dtype in FLOATS and made not in d.exact else DTYPES
    for _ in range(d.draw.choice((1, 2, 2, 3))):
        dtype = Dtype(d.draw.choice((made.dtype, *kinds)))
        name = d.draw.choice(("to.dtype", "_to_copy", "to.dtype"))
        made = d.op(name, made, dtype=dtype)
        if d.chance(0.1):
            made = d.op("neg", made)
    return made


def float_cast(d: Draft) -> None:
    """Floating-point dtypes only: a narrow stretch between wide ones."""
    made = d.floating()
    dtype = made.dtype
    made = d.op("_to_copy", made, dtype=Dtype(d.draw.choice(FLOATS)))
    if d.chance(0.5):
        made = d.op(d.draw.choice(("relu", "neg", "sigmoid")), made)
    d.op("_to_copy", made, dtype=Dtype(dtype if d.chance(0.7) else d.draw.choice(FLOATS)))


def copying(d: Draft) -> None:
    """What only copies, or not even that."""
    made = d.pick()
    for _ in range(d.draw.choice((1, 1, 2))):
        made = d.draw.choice((
            lambda x: d.op("clone", x),
            lambda x: d.op("clone", x, memory_format=MemoryFormat("contiguous_format")),
            lambda x: d.op("contiguous", x),
            lambda x: d.op("contiguous", x, memory_format=MemoryFormat("channels_last")),
            lambda x: d.op("alias", x),
            lambda x: d.op("detach", x),
            lambda x: d.op("dropout", x, 0.5, False),
            lambda x: d.op("dropout", x, 0.0, True),
            lambda x: d.op("lift_fresh_copy", x),
            lambda x: d.op("positive", x),
            lambda x: d.op("to.dtype", x, Dtype(x.dtype), copy=d.chance(0.3)),
            lambda x: d.op("expand", x, d.sizes(x)),
            lambda x: d.op("feature_dropout", x, 0.5, False),
            lambda x: d.op("cat", [x]),
            lambda x: d.op("repeat", x, [1] * len(x.shape)),
        ))(made)  # fmt: skip


def chance(d: Draft) -> None:
    """Random numbers: their count and order are part of what a graph does."""
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


def compare(d: Draft) -> None:
    """Comparisons, choices by them, and limits."""
    x, y = d.sharp(), d.sharp()
    test = d.op(
        d.draw.choice(("gt.Tensor", "eq.Tensor", "le.Tensor", "ne.Tensor")), x, y if d.chance(0.6) else d.number()
    )
    d.draw.choice((
        lambda: d.op("where.self", test, d.pick(), d.pick()),
        lambda: d.op("where.self", test, x, x),
        lambda: d.op("where.self", d.op("logical_not", test), x, y),
        lambda: d.op("where.ScalarOther", test, d.pick(), 0),
        lambda: d.op("masked_fill.Scalar", d.pick(), test, d.number()),
        lambda: d.op("logical_and", test, d.op("ones_like", test)),
        lambda: d.op("bitwise_and.Tensor", test, test),
    ))()  # fmt: skip


def clamp(d: Draft) -> None:
    made = d.pick()
    for _ in range(d.draw.choice((1, 2))):
        made = d.draw.choice((
            lambda x: d.op("clamp", x, d.draw.choice((None, -1, 0)), d.draw.choice((None, 1, 6, 0.5))),
            lambda x: d.op("clamp_min", x, 0),
            lambda x: d.op("relu", x),
            lambda x: d.op("hardtanh", x, 0.0, 6.0),
            lambda x: d.op("clamp_max", x, 6),
        ))(made)  # fmt: skip


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
        lambda: d.op("split.Tensor", (x := d.pick()), 2, _fixed_dim(d, x)),
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
        parts = d.op("split.Tensor", (joined := d.op("cat", alike, (dim := _fixed_dim(d, x)))), d.shape(x)[dim], dim)
        parts = parts if isinstance(parts, tuple) else (parts,)
        if d.chance(0.2):
            d.op("neg", joined)
    if d.chance(0.4):
        order = list(parts)
        if d.chance(0.3):
            d.draw.shuffle(order)
        d.op("cat", order, 0)


def written(d: Draft) -> None:
    """What a capture makes of writes to parts of a tensor."""
    x = d.pick(lambda t: len(t.shape) > 0)
    dim = d.dim(x)
    kind = d.draw.choice(("slice", "select", "copy", "whole", "fill", "index"))
    if kind in ("slice", "whole"):
        start, end = (0, END) if kind == "whole" else (d.draw.choice((0, 1)), d.draw.choice((2, END)))
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
    """A function of the graph, called once or several times, each time with weights of its own."""
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
    "unary": (unary, 8),
    "jumping": (jumping, 2),
    "with_number": (with_number, 10),
    "with_alpha": (with_alpha, 3),
    "binary": (binary, 8),
    "integer_division": (integer_division, 2),
    "with_filled": (with_filled, 6),
    "with_itself": (with_itself, 2),
    "inverses": (inverses, 4),
    "creation": (creation, 4),
    "view": (view, 12),
    "there_and_back": (there_and_back, 8),
    "cast": (cast, 6),
    "float_cast": (float_cast, 3),
    "copying": (copying, 8),
    "chance": (chance, 2),
    "compare": (compare, 4),
    "clamp": (clamp, 3),
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
# What does not magnify a little rounding.
STEADY: dict[str, tuple[Block, int]] = {name: block for name, block in BLOCKS.items() if name != "with_itself"}
