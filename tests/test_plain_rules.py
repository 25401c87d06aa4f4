"""Shape rules without torch: wherever a rule exists, it agrees with torch."""

import random
from collections import Counter
from typing import Any

import pytest

from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.errors import ShapeError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ops.schema import arguments, find_operator
from torch_ir.safety.plain_rules import _RULES, is_plainly_so

SIZES = (0, 1, 2, 3, 4, 6)
DTYPES = ("float32", "float32", "float32", "float16", "int64", "bool", "complex64")
CALLS = 300


def drawn(op_type: str, draw: random.Random) -> tuple[dict[str, TensorMeta], dict[str, Any]]:
    """Arguments that go together as often as not."""
    x = [draw.choice(SIZES) for _ in range(draw.choice((0, 1, 2, 3, 4, 4)))]
    dtype = draw.choice(DTYPES)
    first, given, attrs = ("self" if "input" not in _names(op_type) else "input"), {}, _defaults(op_type)
    given[first] = TensorMeta(first, x, dtype)
    wanted = x[1:2] if "batch_norm" in op_type else x[-1:]
    shapes: dict[str, list[int]] = dict.fromkeys(("bias", "running_mean", "running_var", "weight"), wanted)
    shapes["other"] = x
    if "conv2d" in op_type:
        groups = attrs["groups"] = draw.choice((1, 1, 2, 0))
        weight = [draw.choice((2, 4)), (x[1] if len(x) > 1 else 1) // max(groups, 1), 3, draw.choice((1, 3))]
        shapes |= {"weight": weight, "bias": weight[:1]}
        attrs |= {name: [draw.choice((0, 1, 2)), 1] for name in ("stride", "padding", "dilation")}
    elif "linear" in op_type:
        shapes |= {"weight": [5, *wanted], "bias": [5]}
    for name in _names(op_type)[1:]:
        if name in shapes and draw.random() < 0.9:
            shape = shapes[name] if draw.random() < 0.8 else [draw.choice(SIZES)]
            given[name] = TensorMeta(name, shape, dtype if draw.random() < 0.9 else draw.choice(DTYPES))
            attrs.pop(name, None)
    if "shape" in attrs or "size" in attrs:
        shape = draw.sample(x, len(x)) if draw.random() < 0.7 else [draw.choice((-1, *SIZES)) for _ in range(3)]
        attrs = {"shape" if "reshape" in op_type else "size": shape}
    attrs |= {name: wanted for name in ("normalized_shape",) if name in attrs}
    attrs |= {name: draw.randint(-5, 4) for name in ("dim", "dim0", "dim1") if name in attrs}
    attrs |= {name: draw.sample(range(len(x)), len(x)) for name in ("dims",) if name in attrs}
    attrs |= {name: draw.random() < 0.2 for name in ("training", "train") if name in attrs}
    return given, attrs


def _names(op_type: str) -> list[str]:
    return [argument.name for argument in arguments(find_operator(op_type))]


def _defaults(op_type: str) -> dict[str, Any]:
    plain = {"p": 0.5, "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False}
    found = arguments(find_operator(op_type))
    return {one.name: plain.get(one.name, one.default) for one in found if one.name not in ("self", "input", "other")}


@pytest.mark.parametrize("op_type", sorted(_RULES))
def test_torch_says_the_same(op_type: str) -> None:
    """This includes invalid calls: then no rule applies, whatever is declared."""
    draw = random.Random(op_type)
    spoke: Counter[bool] = Counter()
    for _ in range(CALLS):
        given, attrs = drawn(op_type, draw)
        first = next(iter(given.values()))
        try:
            made = Shapes(IR([], [], [])).results(op_type, given, attrs)
        except ShapeError:
            made = []
        guesses = [[first.copy("made")], [TensorMeta("made", [*first.shape, 1], first.dtype)], made or []]
        for declared in guesses:
            outputs = [tensor.copy("made") for tensor in declared]
            node = OpNode("node", op_type, given.values(), outputs, attrs, args=given)
            is_so = is_plainly_so(node)
            told = [(tensor.shape, tensor.dtype) for tensor in made or ()]
            assert not is_so or [(tensor.shape, tensor.dtype) for tensor in outputs] == told, node.to_dict()
            spoke[is_so] += 1
    assert spoke[True] > 3
