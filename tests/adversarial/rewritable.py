"""Adversarial graphs on which passes find much to do: chains that can be moved, merged, folded or fused."""

from tests.adversarial.nodes import add, cat, chain, op_node
from tests.graphs import tensor, weight
from torch_ir.ir import IR, Dtype, OpNode, Symbol, TensorMeta
from torch_ir.ir.graph.constant_data import TensorData
from torch_ir.ir.graph.tensor import Param

_RANK = 12


def casts(n: int) -> IR:
    """A chain of n casts between three dtypes."""
    x = tensor("x", 2, 3)
    names = ("float64", "float16", "float32")

    def step(index: int, source: TensorMeta) -> OpNode:
        attrs = {"dtype": Dtype(names[index % 3]), "non_blocking": False, "copy": False, "memory_format": None}
        made = op_node(f"y{index}", "to.dtype", [source], (2, 3), **attrs)
        made.output.dtype = names[index % 3]
        return made

    nodes = chain(x, n, step)
    return IR(nodes, [x], [nodes[-1].output])


def permuted(n: int) -> IR:
    """A chain of n permutations of twelve dimensions, with an operator between any two."""
    x = tensor("x", *range(1, _RANK + 1))
    order = [*range(1, _RANK), 0]

    def step(index: int, source: TensorMeta) -> OpNode:
        if index % 2:
            return op_node(f"y{index}", "relu.default", [source], source.shape)
        return op_node(f"y{index}", "permute.default", [source], [source.shape[dim] for dim in order], dims=order)

    nodes = chain(x, n, step)
    return IR(nodes, [x], [nodes[-1].output])


def between_transposes(n: int) -> IR:
    """A transpose, n operators of two operands that are transposed as well, and a transpose back."""
    x = tensor("x", 2, 3)
    first = op_node("first", "transpose.int", [x], (3, 2), dim0=0, dim1=1)
    others = [op_node(f"t{i}", "transpose.int", [x], (3, 2), dim0=0, dim1=1) for i in range(n // 2)]
    between = chain(first.output, n // 2, lambda i, t: add(f"y{i}", t, others[i].output))
    last = op_node("last", "transpose.int", [between[-1].output], (2, 3), dim0=0, dim1=1)
    return IR([first, *others, *between, last], [x], [last.output])


def cut_and_joined(n: int) -> IR:
    """Again and again, a tensor is cut in two and joined in the other order."""
    source = x = tensor("x", 8)
    nodes: list[OpNode] = []
    for index in range(max(1, n // 3)):
        parts = [
            op_node(f"{word}{index}", "slice.Tensor", [source], (4,), dim=0, start=start, end=start + 4, step=1)
            for word, start in (("a", 0), ("b", 4))
        ]
        nodes += [*parts, cat(f"c{index}", [parts[1].output, parts[0].output], 8)]
        source = nodes[-1].output
    return IR(nodes, [x], [source])


def scatters(n: int) -> IR:
    """A tensor that is overwritten piece by piece, and read again where it was written."""
    x, small = tensor("x", n + 1), tensor("small", 1)
    nodes: list[OpNode] = []
    source = x
    for index in range(max(1, n // 2)):
        attrs = {"dim": 0, "start": index, "end": index + 1, "step": 1}
        args, outputs = ["self", "src"], [tensor(f"y{index}", n + 1)]
        nodes.append(OpNode(f"y{index}", "aten.slice_scatter.default", [source, small], outputs, attrs, args=args))
        source = nodes[-1].output
        nodes.append(op_node(f"z{index}", "slice.Tensor", [source], (1,), dim=0, start=0, end=1, step=1))
        small = nodes[-1].output
    return IR(nodes, [x, tensor("small", 1)], [source])


def pads(n: int) -> IR:
    """A chain of n paddings of an open size, each by one element."""
    x = tensor("x", "s")
    nodes = chain(
        x, n, lambda i, t: op_node(f"y{i}", "constant_pad_nd.default", [t], (f"s + {i + 1}",), pad=[0, 1], value=0)
    )
    return IR(nodes, [x], [nodes[-1].output], symbols=[Symbol("s", tensor=x, dim=0)])


def batch_norms(n: int) -> IR:
    """A chain of n // 2 convolutions, each with a batch norm."""
    source = x = tensor("x", 1, 4, 6, 6)
    nodes, params = [], []
    for index in range(max(1, n // 2)):
        kernel = weight(f"w{index}", 4, 4, 1, 1)
        stats = [weight(f"{word}{index}", 4, kind="buffer") for word in ("gamma", "beta", "mean", "var")]
        attrs = {"bias": None, "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
        shape = (1, 4, 6, 6)
        conv = OpNode(
            f"c{index}", "aten.conv2d.default", [source, kernel], [tensor(f"c{index}", *shape)], attrs,
            args=["input", "weight"],
        )  # fmt: skip
        norm = OpNode(
            f"n{index}", "aten.batch_norm.default", [conv.output, *stats], [tensor(f"n{index}", *shape)],
            {"training": False, "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False},
            args=["input", "weight", "bias", "running_mean", "running_var"],
        )  # fmt: skip
        nodes += [conv, norm]
        params += [kernel, *stats]
        source = norm.output
    return IR(nodes, [x], [source], params=params)


def quantised(n: int) -> IR:
    """Layers with integer weights, which are cast, shifted and scaled before use."""
    source = x = tensor("x", 2, 4)
    nodes: list[OpNode] = []
    params: list[TensorMeta] = []
    cast = {"dtype": Dtype("float32"), "non_blocking": False, "copy": False, "memory_format": None}
    for index in range(max(1, n // 4)):
        held = TensorMeta(f"w{index}", (4, 4), "int8", param=Param((f"l{index}.w",), "parameter"))
        zero, scale = weight(f"z{index}", 4, 1), weight(f"s{index}", 4, 1)
        whole = op_node(f"f{index}", "to.dtype", [held], (4, 4), **cast)
        whole.output.dtype = "float32"
        shifted = op_node(f"d{index}", "sub.Tensor", [whole.output, zero], (4, 4), alpha=1)
        scaled = op_node(f"m{index}", "mul.Tensor", [shifted.output, scale], (4, 4))
        inputs, outputs = [source, scaled.output], [tensor(f"y{index}", 2, 4)]
        layer = OpNode(f"y{index}", "aten.linear.default", inputs, outputs, {"bias": None}, args=["input", "weight"])
        nodes += [whole, shifted, scaled, layer]
        params += [held, zero, scale]
        source = layer.output
    return IR(nodes, [x], [source], params=params)


def equal_constants(n: int) -> IR:
    """n stored constants of equal values, added up."""
    x = tensor("x", 16)
    data = TensorData((16,), "float32", bytes(64))
    params = [TensorMeta(f"k{i}", (16,), "float32", param=Param((f"k{i}",), "constant", data)) for i in range(n)]
    nodes = chain(x, n, lambda i, t: add(f"y{i}", t, params[i]))
    return IR(nodes, [x], [nodes[-1].output], params=params)


def scalars(n: int) -> IR:
    """A chain of n additions and products of numbers, which can be folded into each other."""
    x = tensor("x", 2, 3)

    def step(index: int, source: TensorMeta) -> OpNode:
        if index % 2:
            return op_node(f"y{index}", "mul.Scalar", [source], (2, 3), other=1.5)
        return op_node(f"y{index}", "add.Scalar", [source], (2, 3), other=2, alpha=1)

    nodes = chain(x, n, step)
    return IR(nodes, [x], [nodes[-1].output])


def long_list(n: int) -> IR:
    """One operator with two lists of n numbers."""
    x = tensor("x", 4)
    node = op_node("y", "roll.default", [x], (4,), shifts=[1] * n, dims=[0] * n)
    return IR([node], [x], [node.output])


def pieces(n: int) -> IR:
    """One tensor that is cut into n pieces of given sizes, which are joined in reverse order."""
    x = tensor("x", n)
    parts = [tensor(f"y{index}", 1) for index in range(n)]
    attrs = {"split_sizes": [1] * n, "dim": 0}
    first = OpNode("y", "aten.split_with_sizes.default", [x], parts, attrs, args=["self"])
    last = cat("joined", parts[::-1], n)
    return IR([first, last], [x], [last.output])


def sum_tree(n: int) -> IR:
    """n // 2 operators over one input, added up by a balanced tree."""
    x = tensor("x", 2, 3)
    nodes = [op_node(f"y{i}", "add.Scalar", [x], (2, 3), other=i, alpha=1) for i in range(max(2, n // 2))]
    level = [node.output for node in nodes]
    while len(level) > 1:
        sums = [add(f"s{len(level)}_{i}", *level[2 * i : 2 * i + 2]) for i in range(len(level) // 2)]
        nodes += sums
        level = [*(node.output for node in sums), *level[2 * len(sums) :]]
    return IR(nodes, [x], level)


REWRITABLE = (
    casts, permuted, between_transposes, cut_and_joined, scatters, pads, batch_norms, quantised, equal_constants,
    scalars, long_list, pieces, sum_tree,
)  # fmt: skip
