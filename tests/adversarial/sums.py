"""Small files whose nodes pass every check of one call, and together request seconds or gigabytes."""

import random
from typing import Any

from tests.adversarial.nodes import chain, op_node
from tests.graphs import tensor
from torch_ir.ir import IR, Dtype, OpNode, TensorMeta

NO_OPTIONS = {"dtype": None, "layout": None, "device": None, "pin_memory": None}


def _node(name: str, op: str, inputs: dict[str, TensorMeta], *outputs: TensorMeta, **attrs: Any) -> OpNode:
    return OpNode(name, f"aten.{op}", inputs.values(), outputs, attrs, args=inputs)


def splits(count: int, pieces: int = 16_383) -> IR:
    """Different tensors, each split in many pieces; each node declares one."""
    inputs = [tensor(f"x{index}", pieces, index + 1) for index in range(count)]
    nodes = [
        _node(f"y{index}", "split.Tensor", {"self": x}, tensor(f"y{index}", 1, index + 1), split_size=1, dim=0)
        for index, x in enumerate(inputs)
    ]
    return IR(nodes, inputs, [node.output for node in nodes])


def recurrent(count: int, steps: int) -> IR:
    """Different `gru` nodes over so many steps, each of which becomes operators of its own in a decomposition."""
    nodes, inputs = [], []
    for index in range(count):
        given = {
            "input": tensor(f"x{index}", steps, 1, index + 1),
            "hx": tensor(f"h{index}", 1, 1, 1),
            "params.0": tensor(f"w{index}", 3, index + 1),
            "params.1": tensor(f"u{index}", 3, 1),
        }
        inputs += given.values()
        made = (tensor(f"y{index}", steps, 1, 1), tensor(f"z{index}", 1, 1, 1))
        attrs = {"has_biases": False, "num_layers": 1, "dropout": 0.0, "train": False, "bidirectional": False}
        nodes.append(_node(f"y{index}", "gru.input", given, *made, **attrs, batch_first=False))
    return IR(nodes, inputs, [out for node in nodes for out in node.outputs])


def rolls(count: int, shifts: int, size: int = 1 << 20) -> IR:
    """A constant that is moved so often by each node."""
    first = op_node("c", "arange.default", [], (size,), end=size, **{**NO_OPTIONS, "dtype": Dtype("uint8")})
    first.output.dtype = "uint8"
    attrs = {"shifts": [1] * shifts, "dims": [0] * shifts}
    nodes = chain(first.output, count, lambda i, t: op_node(f"y{i}", "roll.default", [t], t.shape, **attrs))
    return IR([first, *nodes], [], [nodes[-1].output])


def lifetimes(count: int) -> IR:
    """Buffers of random sizes, about forty at a time, until the sum of each is taken."""
    draw = random.Random(0)
    x, nodes, alive = tensor("x", 1), [], []
    while len(nodes) < 2 * count:
        if len(nodes) - len(alive) < 2 * count and len(alive) < 40:
            size = draw.randint(1, 50_000)
            made = tensor(f"y{len(nodes)}", size)
            alive.append(_node(made.name, "new_zeros.default", {"self": x}, made, size=[size], **NO_OPTIONS))
            nodes.append(alive[-1])
        else:
            ended = alive.pop(draw.randrange(len(alive))).output
            nodes.append(_node(f"y{len(nodes)}", "sum.default", {"self": ended}, tensor(f"y{len(nodes)}"), dtype=None))
    return IR(nodes, [x], [node.output for node in nodes if "sum" in node.op_type])
