"""Adversarial graphs in which two sizes multiply: calls and operators, functions and weights, paths and levels."""

import struct

from tests.adversarial.nodes import add, call, cat, chain, op_node, unary
from tests.graphs import tensor, weight
from torch_ir.ir import IR, OpNode, Origin, Symbol, TensorMeta
from torch_ir.ir.graph.constant_data import TensorData
from torch_ir.ir.graph.tensor import Param

_RANKS = 10**12
_STEPS = 450  # of a module path, with as many dots: nearly as long as a name may be
_LEVELS = 6
# Operators that analyses look into, here without any operand.
_BARE = ("as_strided", "view_as", "reshape", "to.dtype", "squeeze.dim", "topk", "einsum", "cat", "slice.Tensor", "mm")


def long_paths(n: int) -> IR:
    """A chain of n nodes, each in a separate module of 450 levels."""
    x = tensor("x", 2, 3)
    below = ".".join("m" * (_STEPS - 4))
    nodes = chain(x, n, lambda i, t: unary(i, t, Origin(f"n{i}.{below}", 0, "Deep")))
    return IR(nodes, [x], [nodes[-1].output])


def long_path_tower(n: int) -> IR:
    """Functions that call the next one twice, in modules with long paths: paths of the calls add up once inline."""
    x = tensor("x", 2, 3)
    nodes = chain(x, n, lambda i, t: unary(i, t, Origin("m" * 900, 0, "Deep")))
    function = IR(nodes, [x], [nodes[-1].output])
    for level in range(_LEVELS):
        x, name = tensor("x", 2, 3), f"f{level}"
        calls = [call("first", name, x)]
        calls.append(call("second", name, calls[0].output))
        for node, letter in zip(calls, "ab", strict=True):
            node.origin = Origin(letter * 900, 1, "Deep", outer=(f"{letter * 400}@1",))
        function = IR(calls, [x], [calls[1].output], functions={name: function})
    return function


def many_ranks(n: int) -> IR:
    """A chain of collectives over a mesh of 10^12 ranks."""
    x = TensorMeta("x", (2, 3), "float32", placement=("replicate",))

    def step(index: int, source: TensorMeta) -> OpNode:
        made = TensorMeta(f"y{index}", (2, 3), "float32", placement=("replicate",))
        attrs = {"reduce_op": "sum", "group_name": "tp"}
        return OpNode(made.name, "_c10d_functional.all_reduce.default", [source], [made], attrs, args=["input"])

    nodes = chain(x, n, step)
    return IR(nodes, [x], [nodes[-1].output], mesh={"tp": _RANKS})


def spread_constants(n: int) -> IR:
    """n stored constants of two numbers, each a megabyte apart in memory."""
    x = tensor("x", 2)

    def constant(index: int) -> TensorMeta:
        data = TensorData((2,), "float32", struct.pack("<2f", index, 1))
        return TensorMeta(
            f"k{index}", (2,), "float32", stride=(1 << 18,), param=Param((f"k{index}",), "constant", data)
        )

    params = [constant(index) for index in range(n)]
    nodes = chain(x, n, lambda i, t: add(f"y{i}", t, params[i]))
    return IR(nodes, [x], [nodes[-1].output], params=params)


def no_operands(n: int) -> IR:
    """n nodes without the operands of their operators: a file that loads, and that only the full check refuses."""
    made = [TensorMeta(f"y{index}", (2, 3), "float32") for index in range(n)]
    names = [f"aten.{op}" if "." in op else f"aten.{op}.default" for op in _BARE]
    nodes = [OpNode(out.name, names[index % len(names)], [], [out]) for index, out in enumerate(made)]
    return IR(nodes, [], made)


def operators_in_calls(n: int) -> IR:
    """n // 2 calls of a function with n // 2 different operators."""
    x, given = tensor("x", 2, 3), tensor("x", 2, 3)
    half = max(1, n // 2)
    body = [OpNode(f"z{i}", f"my.op{i}", [given], [tensor(f"z{i}", 2, 3)], args=["self"]) for i in range(half)]
    nodes = chain(x, half, lambda i, t: call(f"y{i}", "f", t))
    return IR(nodes, [x], [nodes[-1].output], functions={"f": IR(body, [given], [body[-1].output])})


def modules_in_calls(n: int) -> IR:
    """n // 2 calls, each in a module of its own, of a function with nodes in n // 2 modules."""
    x, given = tensor("x", 2, 3), tensor("x", 2, 3)
    half = max(1, n // 2)
    body = chain(given, half, lambda i, t: unary(i, t, Origin(f"inner{i}", 0, "Inner")))
    nodes = chain(x, half, lambda i, t: call(f"y{i}", "f", t))
    for index, node in enumerate(nodes):
        node.origin = Origin(f"outer{index}", 0, "Outer")
    return IR(nodes, [x], [nodes[-1].output], functions={"f": IR(body, [given], [body[-1].output])})


def functions_and_weights(n: int) -> IR:
    """n // 3 functions that nothing calls, and n // 3 layers with a weight each."""
    x, count = tensor("x", 2, 3), max(1, n // 3)
    held = [weight(f"w{index}", 2, 3) for index in range(count)]
    nodes = chain(x, count, lambda i, t: add(f"y{i}", t, held[i]))
    functions = {f"f{index}": _body() for index in range(count)}
    return IR(nodes, [x], [nodes[-1].output], params=held, functions=functions)


def functions_and_sizes(n: int) -> IR:
    """n // 2 functions that nothing calls, and n // 2 inputs with an open size each."""
    inputs = [tensor(f"x{index}", f"s{index}") for index in range(max(1, n // 2))]
    nodes = [unary(index, source) for index, source in enumerate(inputs)]
    symbols = [Symbol(f"s{index}", tensor=source, dim=0) for index, source in enumerate(inputs)]
    functions = {f"f{index}": _body() for index in range(len(inputs))}
    return IR(nodes, inputs, [node.output for node in nodes], functions=functions, symbols=symbols)


def _body() -> IR:
    x = tensor("x", 2, 3)
    made = unary(0, x)
    return IR([made], [x], [made.output])


def many_lists(n: int) -> IR:
    """A node with n arguments that are lists of one tensor each."""
    x, out = tensor("x", 2, 3), tensor("y", 2, 3)
    node = OpNode("y", "my.op", [x] * n, [out], args=[f"a{index}.0" for index in range(n)])
    return IR([node], [x], [out])


def one_contraction(n: int) -> IR:
    """One contraction of n vectors."""
    inputs = [tensor(f"x{index}", 2) for index in range(n)]
    attrs = {"equation": f"{','.join('a' * n)}->", "path": None}
    names = [f"tensors.{index}" for index in range(n)]
    node = OpNode("y", "aten.einsum.default", inputs, [tensor("y")], attrs, args=names)
    return IR([node], inputs, [node.output])


def one_module(n: int) -> IR:
    """A chain of n nodes, two of each call of one module."""
    x = tensor("x", 2, 3)
    nodes = chain(x, n, lambda i, t: unary(i, t, Origin("m", i // 2, "M")))
    return IR(nodes, [x], [nodes[-1].output], modules={"m": "M"})


def growing_island(n: int) -> IR:
    """Many nodes that depend on the start of a chain, which depends on another node at each step."""
    x = tensor("x", 2, 3)
    first = op_node("c", "relu.default", [x], (2, 3))
    waiting = [op_node(f"b_wait{i}", "neg.default", [first.output], (2, 3)) for i in range(max(1, n // 2))]
    nodes, last = [first, *waiting], first
    for index in range(max(1, n // 4)):
        other = op_node(f"b{index}", "neg.default", [x], (2, 3))
        last = add(f"c{index}", last.output, other.output)
        nodes += [other, last]
    joined = cat("joined", [node.output for node in waiting], 2 * len(waiting), 3)
    return IR([*nodes, joined], [x], [joined.output, last.output])


def sizes_between(n: int) -> IR:
    """Pairs of operators that could be fused, if the first did not decide a size on which all later nodes depend."""
    x = tensor("x", 4)
    nodes, symbols, last = [], [], x
    for index in range(max(1, n // 4)):
        first = op_node(f"a{index}", "relu.default", [last], (4,))
        found = op_node(f"b{index}", "nonzero.default", [first.output], (f"u{index}", 1))
        found.output.dtype = "int64"
        second = op_node(f"c{index}", "sin.default", [first.output], (4,))
        summed = op_node(f"d{index}", "cumsum.default", [second.output], (4,), dim=0, dtype=None)
        nodes += [first, found, second, summed]
        symbols.append(Symbol(f"u{index}", 0, None, found.output, 0))
        last = summed.output
    return IR(nodes, [x], [last, *(node.output for node in nodes[1::4])], symbols=symbols)


def module_tower(n: int) -> IR:
    """Functions that call the next one twice, in different modules, and n operators in all: 2^12 modules."""
    levels = 12
    function = _body()
    for level in range(levels):
        x, name = tensor("x", 2, 3), f"f{level}"
        calls = [call("first", name, x)]
        calls.append(call("second", name, calls[0].output))
        for node, letter in zip(calls, "ab", strict=True):
            node.origin = Origin(f"{letter}{level}", 0, "Part")
        rest = chain(calls[1].output, max(1, n // levels), unary)
        function = IR([*calls, *rest], [x], [rest[-1].output], functions={name: function})
    return function


PRODUCTS = (
    long_paths, long_path_tower, many_ranks, spread_constants, no_operands, operators_in_calls, modules_in_calls,
    functions_and_weights, functions_and_sizes, many_lists, one_contraction, one_module, growing_island,
    sizes_between, module_tower,
)  # fmt: skip
