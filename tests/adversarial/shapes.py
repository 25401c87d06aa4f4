"""Graphs that load, and nearly all pass the full check, as awkward as possible; each has about `n` nodes."""

import struct
from collections.abc import Callable

from tests.adversarial.interfaces import INTERFACES
from tests.adversarial.nodes import add, call, cat, chain, op_node, unary
from tests.adversarial.products import PRODUCTS
from tests.adversarial.rewritable import REWRITABLE
from tests.graphs import tensor, weight
from torch_ir.ir import IR, FunctionRef, OpNode, Origin, Symbol, TensorMeta
from torch_ir.ir.graph.constant_data import TensorData
from torch_ir.ir.graph.tensor import Param
from torch_ir.ir.json.encode import MAX_FUNCTION_DEPTH

Shape = Callable[[int], IR]
_NO_OPTIONS = {"dtype": None, "layout": None, "device": None, "pin_memory": None}
_LEVELS = 200  # of module paths


def wide(n: int) -> IR:
    """One input with n readers, which are all outputs."""
    x = tensor("x", 2, 3)
    nodes = [op_node(f"y{index}", "add.Scalar", [x], (2, 3), other=index, alpha=1) for index in range(n)]
    return IR(nodes, [x], [node.output for node in nodes])


def deep(n: int) -> IR:
    """A chain of n elementwise operators."""
    x = tensor("x", 2, 3)
    nodes = chain(x, n, unary)
    return IR(nodes, [x], [nodes[-1].output])


def transposes(n: int) -> IR:
    """A chain of n views."""
    x = tensor("x", 2, 3)
    nodes = chain(x, n, lambda i, t: op_node(f"y{i}", "transpose.int", [t], t.shape[::-1], dim0=0, dim1=1))
    return IR(nodes, [x], [nodes[-1].output])


def reshapes(n: int) -> IR:
    """A chain of n reshapes that stay, as each is read twice."""
    x = tensor("x", 4, 6)
    nodes = chain(x, n, lambda i, t: op_node(f"y{i}", "view.default", [t], s := ((8, 3), (4, 6))[i % 2], size=list(s)))
    return IR(nodes, [x], [node.output for node in nodes])


def slices(n: int) -> IR:
    """A chain of n slices, each one element shorter, which are all outputs."""
    x = tensor("x", n + 1)
    nodes = chain(x, n, lambda i, t: op_node(f"y{i}", "slice.Tensor", [t], (n - i,), dim=0, start=1, end=None, step=1))
    return IR(nodes, [x], [node.output for node in nodes])


def slices_to_the_end(n: int) -> IR:
    """A chain of n slices of which only the last is read."""
    ir = slices(n)
    return IR(ir.nodes, ir.graph_inputs, [ir.nodes[-1].output])


def selects(n: int) -> IR:
    """n slices of one tensor, joined again."""
    x = tensor("x", n)
    nodes = [op_node(f"y{i}", "slice.Tensor", [x], (1,), dim=0, start=i, end=i + 1, step=1) for i in range(n)]
    nodes.append(cat("joined", [node.output for node in nodes], n))
    return IR(nodes, [x], [nodes[-1].output])


def one_symbol(n: int) -> IR:
    """A chain of n operators over one open size."""
    x = tensor("x", "s", 3)
    nodes = chain(x, n, unary)
    return IR(nodes, [x], [nodes[-1].output], symbols=[Symbol("s", tensor=x, dim=0)])


def many_symbols(n: int) -> IR:
    """n inputs, each with an open size, and a node for each."""
    inputs = [tensor(f"x{index}", f"s{index}") for index in range(n)]
    nodes = [unary(index, source) for index, source in enumerate(inputs)]
    symbols = [Symbol(f"s{index}", tensor=source, dim=0) for index, source in enumerate(inputs)]
    return IR(nodes, inputs, [node.output for node in nodes], symbols=symbols)


def joined_symbols(n: int) -> IR:
    """n inputs, each with an open size, joined by one cat: the size of its result has n terms."""
    ir = many_symbols(n)
    whole = cat("joined", [node.output for node in ir.nodes], " + ".join(f"s{index}" for index in range(n)))
    return IR([*ir.nodes, whole], ir.graph_inputs, [whole.output], symbols=list(ir.symbols.values()))


def no_solution(n: int) -> IR:
    """n open sizes, under a constraint that no sizes meet."""
    ir = many_symbols(n)
    return IR(ir.nodes, ir.graph_inputs, ir.graph_outputs, symbols=list(ir.symbols.values()), constraints=["s0 != s0"])


def one_reader(n: int) -> IR:
    """n nodes, and one that reads them all."""
    x = tensor("x", 1)
    nodes = [op_node(f"y{index}", "add.Scalar", [x], (1,), other=index, alpha=1) for index in range(n)]
    nodes.append(cat("joined", [node.output for node in nodes], n))
    return IR(nodes, [x], [nodes[-1].output])


def growing_cats(n: int) -> IR:
    """A chain of n cats, each of the last result and the input."""
    x = tensor("x", 1)
    nodes = chain(x, n, lambda i, t: cat(f"y{i}", [t, x], i + 2))
    return IR(nodes, [x], [nodes[-1].output])


def growing_open_cats(n: int) -> IR:
    """The same with an open size."""
    x = tensor("x", "s")
    nodes = chain(x, n, lambda i, t: cat(f"y{i}", [t, x], f"{i + 2}*s"))
    return IR(nodes, [x], [nodes[-1].output], symbols=[Symbol("s", tensor=x, dim=0)])


def equal_nodes(n: int) -> IR:
    """n nodes that compute the same, added up."""
    x = tensor("x", 2, 3)
    same = [op_node(f"y{index}", "relu.default", [x], (2, 3)) for index in range(n // 2)]
    total = chain(x, n // 2, lambda i, t: add(f"z{i}", t, same[i].output))
    return IR([*same, *total], [x], [total[-1].output])


def diamonds(n: int) -> IR:
    """A chain of n nodes that read the last result twice: 2^n paths."""
    x = tensor("x", 2, 3)
    nodes = chain(x, n, lambda i, t: add(f"y{i}", t, t))
    return IR(nodes, [x], [nodes[-1].output])


def long_skips(n: int) -> IR:
    """n results of a chain, all read after its end, the first one last: all are live in the middle."""
    x = tensor("x", 2, 3)
    there = chain(x, n // 2, unary)
    back = chain(there[-1].output, n // 2, lambda i, t: add(f"z{i}", t, there[-1 - i].output))
    return IR([*there, *back], [x], [back[-1].output])


def weights(n: int) -> IR:
    """A chain of n layers, each with a weight."""
    x = tensor("x", 2, 4)
    params = [weight(f"p{index}", 4, 4, keys=(f"layers.{index}.weight",)) for index in range(n)]

    def layer(index: int, source: TensorMeta) -> OpNode:
        origin = Origin(f"layers.{index}", 0, "Linear")
        inputs, outputs = [source, params[index]], [tensor(f"y{index}", 2, 4)]
        return OpNode(
            f"y{index}", "aten.linear.default", inputs, outputs, {"bias": None}, args=["input", "weight"], origin=origin
        )

    nodes = chain(x, n, layer)
    return IR(nodes, [x], [nodes[-1].output], params=params)


def one_weight(n: int) -> IR:
    """n products of one input with n weights, which merge-projections may join."""
    ir = weights(n)
    x = ir.graph_inputs[0]
    nodes = [
        OpNode(node.name, node.op_type, [x, node.inputs[1]], [tensor(node.name, 2, 4)], node.attrs, args=node.args)
        for node in ir.nodes
    ]
    params = [param.copy() for param in ir.params]
    for node, param in zip(nodes, params, strict=True):
        node.inputs = (x, param)
    return IR(nodes, [x], [node.output for node in nodes], params=params)


def buffers(n: int) -> IR:
    """n buffers, each replaced by the sum of it and the input."""
    x = tensor("x", 2, 3)
    held = [weight(f"b{index}", 2, 3, kind="buffer") for index in range(n)]
    nodes = [add(f"y{index}", one, x) for index, one in enumerate(held)]
    pairs = [(one, node.output) for one, node in zip(held, nodes, strict=True)]
    return IR(nodes, [x], [nodes[-1].output], params=held, mutations=pairs)


def tower(n: int) -> IR:
    """Functions that call each other once, at as many levels as a file may have, and n operators in all."""
    levels = min(n, MAX_FUNCTION_DEPTH - 1)
    return _tower(levels, calls=1, others=n // levels)


def wide_tower(n: int) -> IR:
    """A function that calls a function n times, called n times: n * n nodes once inline."""
    return _tower(levels=2, calls=max(1, n // 2))


def _tower(levels: int, calls: int, others: int = 0) -> IR:
    x = tensor("x", 2, 3)
    inner = [unary(0, x)]
    function, name = IR(inner, [x], [inner[0].output]), ""
    for level in range(levels):
        x, name = tensor("x", 2, 3), f"f{level}"
        nodes = chain(x, calls, lambda i, t, name=name: call(f"y{i}", name, t))  # type: ignore[misc]
        nodes += chain(nodes[-1].output, others, lambda i, t: op_node(f"z{i}", "relu.default", [t], (2, 3)))
        function = IR(nodes, [x], [nodes[-1].output], functions={name: function})
    return function


def functions(n: int) -> IR:
    """n functions, each called once."""
    x = tensor("x", 2, 3)

    def body() -> IR:
        given = tensor("x", 2, 3)
        made = unary(0, given)
        return IR([made], [given], [made.output])

    nodes = chain(x, n, lambda i, t: call(f"y{i}", f"f{i}", t))
    return IR(nodes, [x], [nodes[-1].output], functions={f"f{index}": body() for index in range(n)})


def equal_names(n: int) -> IR:
    """n calls of one function, whose nodes all want the same names once inline."""
    given = tensor("x", 2, 3)
    first = unary(0, given)
    last = op_node("same", "relu.default", [first.output], (2, 3))
    ir = functions(n)
    for node in ir.nodes:
        node.attrs["function"] = FunctionRef("f0")
    body = IR([first, last], [given], [last.output])
    return IR(ir.nodes, ir.graph_inputs, ir.graph_outputs, functions={"f0": body})


def equal_in_one_reader(n: int) -> IR:
    """n nodes that compute the same, all read by one node."""
    x = tensor("x", 1)
    nodes = [op_node(f"y{index}", "relu.default", [x], (1,)) for index in range(n)]
    nodes.append(cat("joined", [node.output for node in nodes], n))
    return IR(nodes, [x], [nodes[-1].output])


def moving(n: int) -> IR:
    """A chain of n equal operators between two others, which a rule may move from one end to the other."""
    x = tensor("x", 2, 3)
    first = op_node("first", "abs.default", [x], (2, 3))
    between = chain(first.output, n, lambda i, t: op_node(f"y{i}", "relu.default", [t], (2, 3)))
    last = op_node("last", "abs.default", [between[-1].output], (2, 3))
    return IR([first, *between, last], [x], [last.output])


def pairs(n: int) -> IR:
    """Sums of two nodes each, side by side: every island has another predecessor."""
    x = tensor("x", 2, 3)
    ones = [unary(index, x) for index in range(n // 3)]
    others = [op_node(f"b{index}", "neg.default", [x], (2, 3)) for index in range(n // 3)]
    sums = [add(f"c{i}", one.output, other.output) for i, (one, other) in enumerate(zip(ones, others, strict=True))]
    return IR([*ones, *others, *sums], [x], [node.output for node in sums])


def prologue(n: int) -> IR:
    """A chain of n nodes over a weight, which ends in two projections of one input."""
    x, given = tensor("x", 2, 4), weight("w", 4, 4)
    nodes = chain(given, n, unary)
    for index, source in enumerate((given, nodes[-1].output)):
        inputs, outputs = [x, source], [tensor(f"p{index}", 2, 4)]
        projection = OpNode(
            f"p{index}", "aten.linear.default", inputs, outputs, {"bias": None}, args=["input", "weight"]
        )
        nodes.insert(0 if source is given else len(nodes), projection)
    last = add("sum", nodes[0].output, nodes[-1].output)
    return IR([*nodes, last], [x], [last.output], params=[given])


def stored(n: int) -> IR:
    """n stored constants of equal shape and different values, added up."""
    x = tensor("x", 16)

    def constant(index: int) -> TensorMeta:
        data = TensorData((16,), "float32", struct.pack("<16f", *range(index, index + 16)))
        return TensorMeta(f"k{index}", (16,), "float32", param=Param((f"k{index}",), "constant", data))

    params = [constant(index) for index in range(n)]
    nodes = chain(x, n, lambda i, t: add(f"y{i}", t, params[i]))
    return IR(nodes, [x], [nodes[-1].output], params=params)


def deep_modules(n: int) -> IR:
    """A chain of n nodes, each in a separate module, 200 levels deep."""
    x = tensor("x", 2, 3)
    above = ".".join(f"m{level}" for level in range(_LEVELS // 2))
    below = ".".join(f"m{level}" for level in range(_LEVELS // 2 - 1))
    nodes = chain(x, n, lambda i, t: unary(i, t, Origin(f"{above}.n{i}.{below}", 0, "Deep")))
    return IR(nodes, [x], [nodes[-1].output])


def many_outputs(n: int) -> IR:
    """One node with n outputs, and one that reads them all."""
    x = tensor("x", n, 2)
    parts = [tensor(f"y{index}", 2) for index in range(n)]
    first = OpNode("y", "aten.unbind.int", [x], parts, {"dim": 0}, args=["self"])
    last = cat("joined", parts, 2 * n)
    return IR([first, last], [x], [last.output])


def constants(n: int) -> IR:
    """n ranges of 1 MB, added up."""
    size = 1 << 17
    made = [op_node(f"c{i}", "arange.default", [], (size,), end=size, **_NO_OPTIONS) for i in range(n // 2)]
    for node in made:
        node.output.dtype = "int64"
    x = tensor("x", size, dtype="int64")
    total = chain(x, n // 2, lambda i, t: add(f"z{i}", t, made[i].output))
    return IR([*made, *total], [x], [total[-1].output])


def convolutions(n: int) -> IR:
    """A chain of n convolutions over values that a graph can compute without weights."""
    kernel = op_node("kernel", "full.default", [], (64, 64, 3, 3), size=[64, 64, 3, 3], fill_value=1.0, **_NO_OPTIONS)
    image = op_node("image", "full.default", [], (1, 64, 60, 60), size=[1, 64, 60, 60], fill_value=1.0, **_NO_OPTIONS)
    attrs = {"bias": None, "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    nodes = chain(
        image.output,
        n,
        lambda i, t: OpNode(
            f"y{i}", "aten.conv2d.default", [t, kernel.output], [tensor(f"y{i}", 1, 64, 60, 60)], attrs,
            args=["input", "weight"],
        ),
    )  # fmt: skip
    return IR([kernel, image, *nodes], [], [nodes[-1].output])


SHAPES: dict[str, Shape] = {
    shape.__name__.replace("_", " "): shape
    for shape in (
        wide, deep, transposes, reshapes, slices, slices_to_the_end, selects, one_symbol, many_symbols, joined_symbols,
        no_solution, one_reader, growing_cats, growing_open_cats, equal_nodes, diamonds, long_skips, weights,
        one_weight, buffers, tower, wide_tower, functions, deep_modules, many_outputs, constants, convolutions,
        equal_names, equal_in_one_reader, moving, pairs, prologue, stored, *INTERFACES, *REWRITABLE, *PRODUCTS,
    )
}  # fmt: skip
REFUSED = ("no operands",)  # by the full check
