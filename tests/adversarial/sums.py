"""Small files whose nodes each pass every check of one call, and together request seconds or gigabytes."""

from collections.abc import Callable
from typing import Any

from tests.adversarial.nodes import chain, op_node
from tests.graphs import tensor, weight
from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta

_NO_OPTIONS = {"dtype": None, "layout": None, "device": None, "pin_memory": None}


def _node(name: str, op: str, inputs: dict[str, TensorMeta], *outputs: TensorMeta, **attrs: Any) -> OpNode:
    return OpNode(name, f"aten.{op}", inputs.values(), outputs, attrs, args=inputs)


def _alone(make: Callable[[int], OpNode], count: int) -> IR:
    """A graph of independent nodes, whose inputs are those of the graph, and whose outputs all are outputs."""
    nodes = [make(index) for index in range(count)]
    inputs = {source.name: source for node in nodes for source in node.inputs}
    return IR(nodes, inputs.values(), [out for node in nodes for out in node.outputs])


def splits(count: int = 100) -> IR:
    """Each is in 16,383 pieces."""
    x = tensor("x", 16_383, 1)
    ir = _alone(
        lambda i: _node(
            f"y{i}", "split.Tensor", {"self": tensor("x", 16_383, i + 1)}, tensor(f"y{i}", 1), split_size=1, dim=0
        ),
        1,
    )
    nodes = []
    inputs = []
    for i in range(count):
        x = tensor(f"x{i}", 16_383, i + 1)
        inputs.append(x)
        nodes.append(_node(f"y{i}", "split.Tensor", {"self": x}, tensor(f"y{i}", 1), split_size=1, dim=0))
    return IR(nodes, inputs, [node.output for node in nodes])


def recurrent(count: int, steps: int, layers: int, kind: str = "gru", both: bool = False) -> IR:
    nodes, inputs, params = [], [], []
    for i in range(count):
        x = tensor(f"x{i}", steps, 1, i + 1)
        hx = tensor(f"h{i}", layers * (2 if both else 1), 1, 1)
        inputs += [x, hx]
        given = {"input": x}
        if kind == "lstm":
            c = tensor(f"c{i}", *hx.shape)
            inputs.append(c)
            given |= {"hx.0": hx, "hx.1": c}
        else:
            given["hx"] = hx
        gates = {"gru": 3, "lstm": 4}[kind]
        number = 0
        for layer in range(layers):
            for _ in range(2 if both else 1):
                width = (i + 1) if layer == 0 else (2 if both else 1)
                for shape in ((gates, width), (gates, 1)):
                    w = tensor(f"w{i}_{number}", *shape)
                    inputs.append(w)
                    given[f"params.{number}"] = w
                    number += 1
        outs = [tensor(f"y{i}", steps, 1, 2 if both else 1), tensor(f"yh{i}", *hx.shape)]
        if kind == "lstm":
            outs.append(tensor(f"yc{i}", *hx.shape))
        nodes.append(
            _node(
                f"n{i}",
                f"{kind}.input",
                given,
                *outs,
                has_biases=False,
                num_layers=layers,
                dropout=0.0,
                train=False,
                bidirectional=both,
                batch_first=False,
            )
        )
    return IR(nodes, inputs, [out for node in nodes for out in node.outputs])


def rolls(count: int, shifts: int, size: int = 1 << 17) -> IR:
    """Folded: each moves a megabyte so often."""
    first = op_node("c", "arange.default", [], (size,), end=size, **_NO_OPTIONS)
    first.output.dtype = "int64"
    nodes = chain(
        first.output,
        count,
        lambda i, t: op_node(f"y{i}", "roll.default", [t], t.shape, shifts=[1] * shifts, dims=[0] * shifts),
    )
    return IR([first, *nodes], [], [nodes[-1].output])


def overlapping_buffers(count: int = 990) -> IR:
    import random

    draw = random.Random(0)
    x = tensor("x", 1)
    nodes = []
    for i in range(count):
        sources = [x] if i < 2 else [x]
        size = draw.randint(1, 10_000)
        nodes.append(
            _node(f"y{i}", "new_zeros.default", {"self": x}, tensor(f"y{i}", size), size=[size], **_NO_OPTIONS)
        )
    # each is read later
    reads = []
    order = list(range(count))
    for i in order:
        pass
    out = []
    seq = []
    pending = []
    for i, node in enumerate(nodes):
        seq.append(node)
        pending.append(node)
        while len(pending) > 1 and draw.random() < 0.45 + 0.0005 * len(pending):
            one = pending.pop(draw.randrange(len(pending)))
            r = _node(f"r{one.name}", "sum.default", {"self": one.output}, tensor(f"r{one.name}"), dtype=None)
            seq.append(r)
            out.append(r.output)
    for one in pending:
        r = _node(f"r{one.name}", "sum.default", {"self": one.output}, tensor(f"r{one.name}"), dtype=None)
        seq.append(r)
        out.append(r.output)
    return IR(seq, [x], out)
