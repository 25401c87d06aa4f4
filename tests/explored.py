"""Graphs for the tests of the explorer, built without torch."""

from __future__ import annotations

from collections.abc import Sequence

from tests.graphs import tensor, weight
from torch_ir.ir import IR, FunctionRef, OpNode, Origin, TensorMeta

WIDTH = 8
_C10D = "_c10d_functional"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Growing:
    """Builder of a graph, node by node; every node has one output of the same name."""

    def __init__(self) -> None:
        self.nodes: list[OpNode] = []
        self.params: list[TensorMeta] = []

    def op(self, name: str, reads: Sequence[TensorMeta], module: str, module_class: str = "") -> TensorMeta:
        made = tensor(f"{name}_{len(self.nodes)}", 4, WIDTH)
        args = ["self", "other", "third"][: len(reads)]
        origin = Origin(module, 0, module_class, "model.py:7")
        self.nodes.append(OpNode(made.name, f"aten.{name}.Tensor", reads, [made], args=args, origin=origin))
        return made

    def linear(self, x: TensorMeta, module: str) -> TensorMeta:
        key = f"{module}.weight"
        w = weight(f"p_{len(self.params)}", WIDTH, WIDTH, keys=(key,))
        self.params.append(w)
        made = tensor(f"linear_{len(self.nodes)}", 4, WIDTH)
        origin = Origin(module, 0, "Linear", "model.py:11")
        op_type, args = "aten.linear.default", ["input", "weight"]
        self.nodes.append(OpNode(made.name, op_type, [x, w], [made], {"bias": None}, args=args, origin=origin))
        return made


def decoder(layers: int, plain: int = 30) -> IR:
    """Equal layers, each of an attention, a feed-forward part and `plain` more nodes; all of them read one mask."""
    graph = Growing()
    x, mask = tensor("x", 4, WIDTH), tensor("mask", 4, WIDTH)
    last = x
    for layer in range(layers):
        outer = f"layers.{layer}"
        q, k, v = (graph.linear(last, f"{outer}.attn.{name}") for name in "qkv")
        scores = graph.op("mul", [q, k], f"{outer}.attn", "Attention")
        masked = graph.op("add", [scores, mask], f"{outer}.attn", "Attention")
        mixed = graph.op("mul", [masked, v], f"{outer}.attn", "Attention")
        added = graph.op("add", [last, mixed], outer, "Layer")
        up = graph.linear(added, f"{outer}.mlp.up")
        for _ in range(plain):
            up = graph.op("mul", [up, up], f"{outer}.mlp", "FeedForward")
        last = graph.op("add", [added, graph.linear(up, f"{outer}.mlp.down")], outer, "Layer")
    return IR(graph.nodes, [x, mask], [last], params=graph.params, model_name="Decoder", pytorch_version="2.13.0")


def merged_weights() -> IR:
    """A layer, and two nodes over its weight."""
    graph, x = Growing(), tensor("x", 4, WIDTH)
    y = graph.linear(x, "fc")
    w = graph.params[0]
    scaled = graph.op("mul", [graph.op("add", [w, w], ""), w], "")
    last = graph.op("add", [y, scaled], "")
    return IR(graph.nodes, [x], [last], params=graph.params)


def trained() -> IR:
    """Two modules, their backward, which reads values of forward, and an update."""
    graph = Growing()
    x = tensor("x", 4, WIDTH)
    first = graph.linear(x, "one")
    hidden = graph.op("mul", [first, first], "one", "Block")
    second = graph.linear(hidden, "two")
    loss = graph.op("mul", [second, second], "two", "Block")
    grad = graph.op("add", [loss, second], "backward.two", "BlockBackward")
    grad = graph.op("mul", [grad, hidden], "backward.two", "BlockBackward")
    grad = graph.op("mul", [grad, first], "backward.one", "BlockBackward")
    grad = graph.op("mul", [grad, x], "backward.one", "BlockBackward")
    new = graph.op("add", [grad, grad], "optimizer.one", "BlockUpdate")
    new = graph.op("mul", [new, grad], "optimizer.one", "BlockUpdate")
    return IR(graph.nodes, [x], [loss, new], params=graph.params, model_name="Step", pytorch_version="2.13.0")


def hostile() -> IR:
    """A graph whose every name and text would like to be markup."""
    x, made = tensor(HOSTILE, 2, 3), tensor(f"y{HOSTILE}", 2, 3)
    w = weight(f"w{HOSTILE}", 2, 3, keys=(HOSTILE,))
    origin = Origin(f"{HOSTILE}.0", 0, HOSTILE, f"{HOSTILE}:1")
    attrs = {f"a{HOSTILE}": HOSTILE}
    node = OpNode(
        f"n{HOSTILE}", f"aten.{HOSTILE}.default", [x, w], [made], attrs, args=["self", HOSTILE], origin=origin
    )
    again = tensor("z", 2, 3)
    other = OpNode("z", "aten.relu.default", [made], [again], args=["self"], origin=Origin(f"{HOSTILE}.1", 0, HOSTILE))
    return IR([node, other], [x], [again], params=[w], model_name=HOSTILE)


def with_call() -> IR:
    """x -> neg -> a call of a function of two nodes -> result."""
    inner, a, b = tensor("given", 2, 3), tensor("a", 2, 3), tensor("b", 2, 3)
    body = IR(
        [
            OpNode("a", "aten.relu.default", [inner], [a], args=["self"]),
            OpNode("b", "aten.tanh.default", [a], [b], args=["self"]),
        ],
        [inner],
        [b],
    )
    x, neg, out = tensor("x", 2, 3), tensor("neg", 2, 3), tensor("out", 2, 3)
    nodes = [
        OpNode("neg", "aten.neg.default", [x], [neg], args=["self"]),
        OpNode("out", "call", [neg], [out], {"function": FunctionRef("body")}, args=["given"]),
    ]
    return IR(nodes, [x], [out], functions={"body": body}, model_name="Calling")


def asserting() -> IR:
    """x -> relu -> result, with assertions on x, nodes that only they read, and an unused node."""
    x, gt, every, relu, dead = (tensor(name, 2, 3) for name in ("x", "gt", "all", "relu", "dead"))
    nodes = [
        OpNode("gt", "aten.gt.Scalar", [x], [gt], {"other": 0}, args=["self"]),
        OpNode("all", "aten.all.default", [gt], [every], args=["self"]),
        OpNode("assert", "aten._assert_async.default", [every], [], args=["self"]),
        OpNode("relu", "aten.relu.default", [x], [relu], args=["self"]),
        OpNode("dead", "aten.neg.default", [x], [dead], args=["self"]),
        OpNode("meta", "aten._assert_tensor_metadata.default", [relu], [], args=["a"]),
    ]
    return IR(nodes, [x], [relu], model_name="Asserting")


def half_asserted() -> IR:
    """Two equal modules; a value of both is read outside, in the first by an assertion alone."""
    graph, x = Growing(), tensor("x", 4, WIDTH)
    inner, outer = [], []
    for at in range(2):
        inner.append(graph.op("mul", [x, x], f"parts.{at}", "Part"))
        outer.append(graph.op("add", [inner[-1], inner[-1]], f"parts.{at}", "Part"))
    last = graph.op("sub", [*outer, inner[1]], "")
    graph.nodes.append(OpNode("assert", "aten._assert_tensor_metadata.default", [inner[0]], [], args=["a"]))
    return IR(graph.nodes, [x], [last], model_name="HalfAsserted")


def sharded() -> IR:
    """A linear layer that every rank computes a part of, and the sum over both ranks."""
    x, w = tensor("x", 4, 8), weight("w", 8, 8, keys=("fc.weight",))
    linear, reduced, waited = (tensor(name, 4, 8) for name in ("linear", "all_reduce", "wait_tensor"))
    x.placement, w.placement, linear.placement, waited.placement = (
        ("replicate",), ("shard(1)",), ("partial(sum)",), ("replicate",),
    )  # fmt: skip
    at, more = Origin("fc", 0, "Linear"), {"reduce_op": "sum", "group_name": "tp"}
    nodes = [
        OpNode("linear", "aten.linear.default", [x, w], [linear], {"bias": None}, args=["input", "weight"], origin=at),
        OpNode("all_reduce", f"{_C10D}.all_reduce.default", [linear], [reduced], more, args=["input"], origin=at),
        OpNode("wait_tensor", f"{_C10D}.wait_tensor.default", [reduced], [waited], args=["tensor"], origin=at),
    ]
    return IR(nodes, [x], [waited], params=[w], model_name="Sharded", mesh={"tp": 2})


def normed(layers: int) -> IR:
    """Layers of a norm and a residual that the norm reads through a cast which changes nothing."""
    graph = Growing()
    x = last = tensor("x", 4, WIDTH)
    for layer in range(layers):
        outer = f"layers.{layer}"
        cast = graph.op("to", [last], f"{outer}.norm", "Norm")
        scaled = graph.op("mul", [cast, cast], f"{outer}.norm", "Norm")
        last = graph.op("add", [cast, graph.linear(scaled, f"{outer}.fc")], outer, "Layer")
    return IR(graph.nodes, [x], [last], params=graph.params, model_name="Normed")
