"""Corruptions of outputs, mutations, branches and weights."""

import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from tests.mutations.kinds import Mutant, each_node, graphs, kind, shuffled
from tests.mutations.subjects import Subject
from torch_ir import IR, OpNode, TensorMeta
from torch_ir.ir import Branch, FunctionRef, Slot, TensorData
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ops.tensor_data import from_tensor, to_tensor


@kind("two outputs swapped")
def swapped_outputs(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for g, graph in enumerate(graphs(subject.ir)):
        count = len(graph.graph_outputs)
        for first, second in shuffled([(a, b) for b in range(count) for a in range(b)], rng):
            copy = subject.ir.clone()
            outputs = [*graphs(copy)[g].graph_outputs]
            outputs[first], outputs[second] = outputs[second], outputs[first]
            graphs(copy)[g].graph_outputs = outputs
            yield Mutant(f"outputs {first} and {second} swapped", copy)


@kind("output replaced by another tensor of the shape")
def other_output(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for g, graph in enumerate(graphs(subject.ir)):
        for place in shuffled(range(len(graph.graph_outputs)), rng):
            copy = subject.ir.clone()
            body = graphs(copy)[g]
            outputs = [*body.graph_outputs]
            if others := _alike(body, outputs[place]):
                outputs[place] = rng.choice(others)
                body.graph_outputs = outputs
                yield Mutant(f"output {place} is {outputs[place].name}", copy)


@kind("output dropped")
def output_dropped(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for place in shuffled(range(len(subject.ir.graph_outputs)), rng):
        copy = subject.ir.clone()
        copy.graph_outputs = [tensor for index, tensor in enumerate(copy.graph_outputs) if index != place]
        copy.output_tree = _without(copy.output_tree, place)
        yield Mutant(f"without output {place}", copy)


@kind("two graph inputs swapped")
def swapped_inputs(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    count = len(subject.ir.graph_inputs)
    for first, second in shuffled([(a, b) for b in range(count) for a in range(b)], rng):
        copy = subject.ir.clone()
        inputs = copy.graph_inputs
        inputs[first], inputs[second] = inputs[second], inputs[first]
        yield Mutant(f"inputs {inputs[first].name} and {inputs[second].name} swapped", copy)


@kind("mutation dropped")
def mutation_dropped(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for place in shuffled(range(len(subject.ir.mutations)), rng):
        copy = subject.ir.clone()
        gone = copy.mutations[place][0]
        copy.mutations = [pair for index, pair in enumerate(copy.mutations) if index != place]
        yield Mutant(f"{gone.name} is not changed", copy)


@kind("mutation gives another value")
def mutation_value(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    """The old one among them."""
    for place in shuffled(range(len(subject.ir.mutations)), rng):
        for choice in shuffled(range(len(_alike(subject.ir, subject.ir.mutations[place][1]))), rng):
            copy = subject.ir.clone()
            pairs = [*copy.mutations]
            pairs[place] = (pairs[place][0], _alike(copy, pairs[place][1])[choice])
            copy.mutations = pairs
            yield Mutant(f"{pairs[place][0].name} becomes {pairs[place][1].name}", copy)


@kind("mutation of another tensor")
def mutation_target(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for place in shuffled(range(len(subject.ir.mutations)), rng):
        old, value = subject.ir.mutations[place]
        given = [*subject.ir.graph_inputs, *subject.ir.params]
        for choice in [index for index, t in enumerate(given) if t is not old and t.shape == value.shape]:
            copy = subject.ir.clone()
            pairs = [*copy.mutations]
            pairs[place] = ([*copy.graph_inputs, *copy.params][choice], pairs[place][1])
            copy.mutations = pairs
            yield Mutant(f"{pairs[place][0].name} is changed instead of {old.name}", copy)


@kind("mutation invented")
def mutation_invented(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    given = [*subject.ir.graph_inputs, *subject.ir.params]
    for place in shuffled(range(len(given)), rng):
        copy = subject.ir.clone()
        target = [*copy.graph_inputs, *copy.params][place]
        made = [t for node in copy.nodes for t in node.outputs if (t.shape, t.dtype) == (target.shape, target.dtype)]
        if made and all(target is not changed for changed, _ in copy.mutations):
            copy.mutations = [*copy.mutations, (target, rng.choice(made))]
            yield Mutant(f"{target.name} is changed", copy)


@kind("branch replaced by another")
def branch(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, graph, node in each_node(subject.ir, rng, _called):
        for name in _called(node):
            others = [FunctionRef(other) for other in graph.functions if other != node.attrs[name]]
            if others:
                before, node.attrs[name] = node.attrs[name], rng.choice(others)
                yield Mutant(f"{node.name}: {name} is {node.attrs[name]} instead of {before}", copy)
                break


@kind("branches swapped")
def branches(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, _, node in each_node(subject.ir, rng, lambda node: len(_called(node)) == 2):
        first, second = _called(node)
        node.attrs[first], node.attrs[second] = node.attrs[second], node.attrs[first]
        yield Mutant(f"{node.name}: {first} and {second} swapped", copy)


def _called(node: OpNode) -> list[str]:
    """The arguments of a node that are functions."""
    return [name for name, value in node.attrs.items() if isinstance(value, FunctionRef)]


@kind("keys of two weights swapped")
def swapped_keys(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    params = subject.ir.params
    pairs = [
        (a, b)
        for b in range(len(params))
        for a in range(b)
        if (params[a].shape, params[a].dtype) == (params[b].shape, params[b].dtype)
    ]
    for first, second in shuffled(pairs, rng):
        copy = subject.ir.clone()
        one, other = copy.params[first], copy.params[second]
        one.param, other.param = other.param, one.param
        yield Mutant(f"{one.name} and {other.name} have each other's keys", copy)


@kind("key of a weight changed")
def renamed_key(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for place in shuffled(range(len(subject.ir.params)), rng):
        copy = subject.ir.clone()
        param = copy.params[place]
        if param.param is not None and param.param.in_state_dict:
            param.param = replace(param.param, keys=(f"{param.key}_", *param.param.keys[1:]))
            yield Mutant(f"{param.name} is under {param.key!r}", copy)


@kind("tied key dropped")
def untied(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for place in shuffled(range(len(subject.ir.params)), rng):
        copy = subject.ir.clone()
        param = copy.params[place]
        if param.param is not None and len(param.param.keys) > 1:
            param.param = replace(param.param, keys=param.param.keys[:1])
            yield Mutant(f"{param.name} has only the key {param.key!r}", copy)


@kind("element of a constant changed")
def constant(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for place in shuffled(range(len(subject.ir.params)), rng):
        copy = subject.ir.clone()
        param = copy.params[place]
        if param.param is not None and param.param.data is not None and param.param.data.raw:
            param.param = replace(param.param, data=_one_changed(param.param.data, rng))
            yield Mutant(f"an element of {param.name} is another", copy)


@kind("values of a constant dropped")
def constant_dropped(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for place in shuffled(range(len(subject.ir.params)), rng):
        copy = subject.ir.clone()
        param = copy.params[place]
        if param.param is not None and param.param.data is not None:
            param.param = replace(param.param, data=None)
            yield Mutant(f"{param.name} has no values", copy)


@kind("element of a weight scaled by 1.01")
def weight(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for key in shuffled([key for key, value in subject.model.state_dict().items() if value.is_floating_point()], rng):
        weights = dict(subject.model.state_dict())
        weights[key] = weights[key].clone()
        place = rng.randrange(weights[key].numel())
        weights[key].view(-1)[place] = weights[key].view(-1)[place] * 1.01 + 1e-3
        yield Mutant(f"element {place} of {key} is another", subject.ir, weights)


@kind("value of a tied weight changed under one key")
def tied_value(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for keys in shuffled(subject.ir.tied_weights, rng):
        weights = dict(subject.model.state_dict())
        weights[keys[1]] = weights[keys[1]] * 1.5
        yield Mutant(f"{keys[1]} is not {keys[0]}", subject.ir, weights)


def _without(tree: Tree, place: int) -> Tree:
    """The tree without a slot, and the later ones moved up; a slot that stands alone becomes None."""
    if isinstance(tree, Slot):
        return None if tree == place else Slot(tree - (tree > place))
    if not isinstance(tree, Branch):
        return tree
    kept = [index for index, item in enumerate(tree.items) if not (isinstance(item, Slot) and item == place)]
    keys = tuple(tree.keys[index] for index in kept) if tree.keys else ()
    return replace(tree, items=tuple(_without(tree.items[index], place) for index in kept), keys=keys)


def _alike(graph: IR, tensor: TensorMeta) -> list[TensorMeta]:
    return [t for t in graph.tensors() if t is not tensor and (t.shape, t.dtype) == (tensor.shape, tensor.dtype)]


def _one_changed(data: TensorData, rng: random.Random) -> TensorData:
    values = to_tensor(data)
    place = rng.randrange(values.numel())
    flat = values.view(-1)
    flat[place] = ~flat[place] if values.dtype == torch.bool else flat[place] + 1
    return from_tensor(values)
