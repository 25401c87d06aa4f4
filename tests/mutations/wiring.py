"""Corruptions of operators, their inputs and their order."""

import random
from collections.abc import Iterator

from tests.mutations.kinds import Mutant, each_node, kind, shuffled
from tests.mutations.subjects import Subject
from torch_ir import IR, OpNode, TensorMeta

# an operator -> another with the same arguments
SIBLINGS = {
    "aten.add.Tensor": "aten.sub.Tensor",
    "aten.sub.Tensor": "aten.add.Tensor",
    "aten.mul.Tensor": "aten.div.Tensor",
    "aten.div.Tensor": "aten.mul.Tensor",
    "aten.relu.default": "aten.neg.default",
    "aten.sigmoid.default": "aten.tanh.default",
    "aten.tanh.default": "aten.sigmoid.default",
    "aten.silu.default": "aten.relu.default",
    "aten.gelu.default": "aten.celu.default",
    "aten.softmax.int": "aten.log_softmax.int",
    "aten.max_pool2d.default": "aten.avg_pool2d.default",
    "aten.max.dim": "aten.min.dim",
    "aten.amax.default": "aten.amin.default",
    "aten.mean.dim": "aten.sum.dim_IntList",
    "aten.sum.dim_IntList": "aten.mean.dim",
    "aten.argmax.default": "aten.argmin.default",
    "aten.gt.Scalar": "aten.ge.Scalar",
    "aten.lt.Scalar": "aten.le.Scalar",
    "aten.lt.Tensor": "aten.le.Tensor",
    "aten.le.Tensor": "aten.lt.Tensor",
    "aten.eq.Scalar": "aten.ne.Scalar",
    "aten.ge.Scalar": "aten.gt.Scalar",
    "aten.round.default": "aten.floor.default",
    "aten.abs.default": "aten.neg.default",
    "aten.sin.default": "aten.cos.default",
    "aten.cos.default": "aten.sin.default",
    "aten.exp.default": "aten.expm1.default",
    "aten.cumsum.default": "aten.cumprod.default",
    "aten.bitwise_and.Tensor": "aten.bitwise_or.Tensor",
    "aten.bitwise_or.Tensor": "aten.bitwise_xor.Tensor",
    "aten.bitwise_xor.Tensor": "aten.bitwise_and.Tensor",
    "aten.tril.default": "aten.triu.default",
    "aten.triu.default": "aten.tril.default",
    "aten.zeros_like.default": "aten.ones_like.default",
    "aten.zeros.default": "aten.ones.default",
    "aten.lstm.input": "aten.gru.input",
    "aten.rnn_relu.input": "aten.rnn_tanh.input",
    "aten.rnn_tanh.input": "aten.rnn_relu.input",
}


@kind("operator replaced by a sibling")
def sibling(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, _, node in each_node(subject.ir, rng, lambda node: node.op_type in SIBLINGS):
        before, node.op_type = node.op_type, SIBLINGS[node.op_type]
        yield Mutant(f"{node.name}: {before} -> {node.op_type}", copy)


@kind("two inputs swapped")
def swapped_inputs(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, _, node in each_node(subject.ir, rng, lambda node: len(set(node.inputs)) > 1):
        first, second = sorted(rng.sample(range(len(node.inputs)), 2))
        inputs = list(node.inputs)
        inputs[first], inputs[second] = inputs[second], inputs[first]
        if tuple(inputs) != node.inputs:
            node.inputs = inputs
            yield Mutant(f"{node.name}: {node.args[first]} and {node.args[second]} swapped", copy)


@kind("input taken from another tensor of the shape")
def rewired(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, graph, node in each_node(subject.ir, rng):
        for place in shuffled(range(len(node.inputs)), rng):
            if others := _alike(graph, node.inputs[place], graph.nodes.index(node)):
                new, inputs = rng.choice(others), list(node.inputs)
                inputs[place] = new
                old, node.inputs = node.inputs[place], tuple(inputs)
                yield Mutant(f"{node.name}: reads {new.name} instead of {old.name}", copy)
                break


@kind("optional input left out")
def input_absent(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, _, node in each_node(subject.ir, rng, lambda node: len(node.inputs) > 1):
        place = rng.randrange(1, len(node.inputs))
        name, gone = node.args[place], node.inputs[place]
        node.set_inputs(
            [*node.inputs[:place], *node.inputs[place + 1 :]], [*node.args[:place], *node.args[place + 1 :]]
        )
        node.attrs[name] = None
        yield Mutant(f"{node.name}: {name} is absent instead of {gone.name}", copy)


@kind("node dropped")
def dropped(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    """Connect its input to its consumers."""
    for copy, graph, node in each_node(subject.ir, rng):
        if len(node.outputs) == 1 and (source := _passed_through(node)) is not None:
            node.output.replace_all_uses_with(source)
            _remove(graph, node)
            yield Mutant(f"without {node.name} ({node.op_type})", copy)


@kind("node dropped that makes nothing")
def assertion_dropped(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, graph, node in each_node(subject.ir, rng, lambda node: not node.outputs):
        _remove(graph, node)
        yield Mutant(f"without {node.name} ({node.op_type})", copy)


@kind("node applied twice")
def twice(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, graph, node in each_node(subject.ir, rng):
        if len(node.outputs) != 1 or (source := _passed_through(node)) is None:
            continue
        once, result = node.output, node.output.copy(f"{node.output.name}_again")
        once.replace_all_uses_with(result)
        inputs = [once if tensor is source else tensor for tensor in node.inputs]
        again = OpNode("again", node.op_type, inputs, [result], node.attrs, args=node.args)
        graph.nodes.insert(graph.nodes.index(node) + 1, again)
        yield Mutant(f"{node.name} ({node.op_type}) applied twice", copy)


@kind("two dependent nodes reordered")
def reordered(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, graph, node in each_node(subject.ir, rng):
        readers = [reader for output in node.outputs for reader in output.consumers if reader in graph.nodes]
        if readers:
            first, second = graph.nodes.index(node), graph.nodes.index(readers[0])
            graph.nodes[first], graph.nodes[second] = graph.nodes[second], graph.nodes[first]
            yield Mutant(f"{readers[0].name} before {node.name}", copy)


@kind("other output of a node read")
def other_output(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, _, node in each_node(subject.ir, rng, lambda node: len(node.outputs) > 1):
        pairs = [
            (a, b) for a in node.outputs for b in node.outputs if a is not b and a.consumers and a.shape == b.shape
        ]
        if pairs:
            read, other = rng.choice(pairs)
            reader = rng.choice(read.consumers)
            reader.inputs = tuple(other if tensor is read else tensor for tensor in reader.inputs)
            yield Mutant(f"{reader.name}: reads output {other.index} of {node.name} instead of {read.index}", copy)


@kind("last of a list of tensors left out")
def list_shorter(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, _, node in each_node(
        subject.ir, rng, lambda node: len(node.inputs) > 1 and node.args[-1].rpartition(".")[2].isdigit()
    ):
        gone = node.inputs[-1]
        node.set_inputs(node.inputs[:-1], node.args[:-1])
        yield Mutant(f"{node.name}: its list ends before {gone.name}", copy)


def _alike(graph: IR, tensor: TensorMeta, position: int) -> list[TensorMeta]:
    """Other tensors of the shape and dtype that are there before a position."""
    made = [output for node in graph.nodes[:position] for output in node.outputs]
    there = [*graph.graph_inputs, *graph.params, *made]
    return [t for t in there if t is not tensor and (t.shape, t.dtype) == (tensor.shape, tensor.dtype)]


def _passed_through(node: OpNode) -> TensorMeta | None:
    """Return an input that could replace the output."""
    facts = (node.output.shape, node.output.dtype)
    return next((tensor for tensor in node.inputs if (tensor.shape, tensor.dtype) == facts), None)


def _remove(graph: IR, node: OpNode) -> None:
    node.inputs = ()
    graph.nodes.remove(node)
