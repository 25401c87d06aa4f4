"""Near misses: a graph that a rule matches, with one small change.

Each twist is one that real models have, and that a rule is wrong to overlook: somebody else reads what a fusion would
hide, a weight has two owners, a cast stands in between, an axis counts from the end, there is nothing to compute on.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.random_graphs import rebuilt, runs
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.errors import TorchIRError
from torch_ir.ir import IR, Dtype, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ops.schema import name_arguments

Twist = Callable[[IR, OpNode, random.Random], bool]  # changes the graph at a node; False where that cannot be
_FLOATS = ("float64", "float32", "float16", "bfloat16")  # from the longest mantissa to the shortest
_FLAGS = ("training", "train", "use_input_stats")
_AXES = ("dim", "dims", "dim0", "dim1", "axis", "start_dim", "end_dim")
TWISTS: dict[str, Twist] = {}


def twisted(ir: IR, place: str, kind: str, draw: random.Random) -> IR | None:
    """A copy of the graph, twisted at the node of that name; None where there is none, or the result does not run."""
    copy = ir.clone()
    node = next((node for node in copy.nodes if node.name == place), None)
    if node is None or not TWISTS[kind](copy, node, draw):
        return None
    for tensor in node.outputs:  # the stored graph may not return them, and then no difference would show
        copy.graph_outputs = [
            *copy.graph_outputs,
            _added(copy, "aten.flip.default", [tensor], {"dims": []}, len(copy.nodes)),
        ]
    try:
        _retype(copy)
        made = rebuilt(copy, copy.nodes, copy.graph_outputs).check()
    except TorchIRError:
        return None
    return made if runs(made) else None


def _twist(function: Twist) -> Twist:
    TWISTS[function.__name__.replace("_", " ")] = function
    return function


@_twist
def second_reader(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The node's input has a second consumer."""
    return any(_read(ir, tensor) for tensor in _some(node.inputs, draw, lambda tensor: tensor.param is None))


@_twist
def returned(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The node's input is a graph output."""
    found = _some(node.inputs, draw, lambda tensor: tensor.producer is not None)
    ir.graph_outputs = [*ir.graph_outputs, *found]
    return bool(found)


@_twist
def shared_weight(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The weight has another consumer."""
    return any(_read(ir, tensor) for tensor in _some(node.inputs, draw, lambda tensor: tensor.param is not None))


@_twist
def changing_weight(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The graph leaves another value in the weight."""
    changed = {target for target, _ in ir.mutations}
    found = _some(node.inputs, draw, lambda tensor: tensor.param is not None and tensor not in changed)
    for tensor in found:
        made = _added(ir, "aten.neg.default", [tensor], {}, len(ir.nodes))
        ir.mutations = [*ir.mutations, (tensor, made)]
    return bool(found)


@_twist
def in_training(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The layer, or one right before it, is in training."""
    flags = [(one, flag) for one in (node, *_makers(node)) for flag in _FLAGS if one.attrs.get(flag) is False]
    for one, flag in flags:
        one.attrs[flag] = True
    return bool(flags)


@_twist
def cast_between(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The node's input was cast to another dtype and back."""
    found = _some(node.inputs, draw, lambda tensor: tensor.dtype in _FLOATS)
    for tensor in found:
        other = draw.choice([dtype for dtype in _FLOATS if dtype != tensor.dtype])
        place = ir.nodes.index(node)
        cast = _added(ir, "aten.to.dtype", [tensor], {"dtype": Dtype(other)}, place)
        back = _added(ir, "aten.to.dtype", [cast], {"dtype": Dtype(tensor.dtype)}, place + 1)
        _redirect(node, tensor, back)
    return bool(found)


@_twist
def other_dtype(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The node's input has a narrower dtype; rounding before it would be visible in a wider one."""
    found = _some(node.inputs, draw, lambda tensor: tensor.dtype in _FLOATS[:-1])
    for tensor in found:
        other = draw.choice(_FLOATS[_FLOATS.index(tensor.dtype) + 1 :])
        _redirect(node, tensor, _added(ir, "aten.to.dtype", [tensor], {"dtype": Dtype(other)}, ir.nodes.index(node)))
    return bool(found)


@_twist
def copy_between(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The node's input is a copy or a view of the original one."""
    found = _some(node.inputs, draw, lambda tensor: True)
    for tensor in found:
        kind = draw.choice(("aten.clone.default", "aten.alias.default", "aten.detach.default"))
        _redirect(node, tensor, _added(ir, kind, [tensor], {}, ir.nodes.index(node)))
    return bool(found)


@_twist
def axes_from_the_end(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """Axes are counted from the other end."""
    return sum(_with_axes(one, lambda axis, rank: axis - rank if axis >= 0 else axis + rank) for one in _near(node)) > 0


@_twist
def other_axis(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """Another axis, of which the shapes may well be the same."""
    return _with_axes(draw.choice(_near(node)), lambda axis, rank: (axis + 1) % rank)


@_twist
def swapped_operands(ir: IR, node: OpNode, draw: random.Random) -> bool:
    if set(node.args) != {"self", "other"}:
        return False
    node.set_inputs(reversed(node.inputs), node.args)
    return True


@_twist
def one_operand_twice(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The same tensor stands in two places."""
    alike = [t for t in node.inputs if (t.shape, t.dtype) == (node.inputs[0].shape, node.inputs[0].dtype)]
    if len(alike) < 2 or len(set(alike)) < 2:
        return False
    _redirect(node, alike[1], alike[0])
    return True


@_twist
def nothing_to_compute_on(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The first size of the inputs is 0."""
    if ir.symbols or not any(tensor.shape and tensor.shape[0] for tensor in ir.graph_inputs):
        return False
    for tensor in ir.graph_inputs:
        if tensor.shape and tensor.stride is None:
            tensor.shape = (0, *tensor.shape[1:])
    return True


@_twist
def other_factor(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """A sum or difference right before the node, or the node itself, has a factor."""
    found = [one for one in _near(node) if one.attrs.get("alpha") == 1]
    for one in draw.sample(found, min(1, len(found))):
        one.attrs["alpha"] = 2
    return bool(found)


@_twist
def scaled_before(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """An input of one of the nodes before is multiplied by a number."""
    one = draw.choice(_upstream(node, 4))
    found = _some(one.inputs, draw, lambda tensor: tensor.dtype in _FLOATS and tensor.producer is not None)
    for tensor in found:
        _redirect(one, tensor, _added(ir, "aten.mul.Tensor", [tensor], {"other": 0.5}, ir.nodes.index(one)))
    return bool(found)


@_twist
def small_integers_before(ir: IR, node: OpNode, draw: random.Random) -> bool:
    """The nodes right before compute in uint8, where numbers wrap around, and the node itself in int64."""
    makers = _makers(node)
    for one, dtype in ((node, "int64"), *((maker, "uint8") for maker in dict.fromkeys(makers))):
        for tensor in dict.fromkeys(one.inputs):
            if tensor.producer not in makers and tensor.dtype != "bool":
                made = _added(ir, "aten.to.dtype", [tensor], {"dtype": Dtype(dtype)}, ir.nodes.index(one))
                _redirect(one, tensor, made)
    return bool(makers)


# -- how --------------------------------------------------------------------------------------------------------------


def _some(tensors: tuple[TensorMeta, ...], draw: random.Random, fits: Callable[[TensorMeta], bool]) -> list[TensorMeta]:
    """One of the tensors that fit, if any does."""
    found = [tensor for tensor in dict.fromkeys(tensors) if fits(tensor)]
    return draw.sample(found, min(1, len(found)))


def _makers(node: OpNode) -> list[OpNode]:
    return [tensor.producer for tensor in node.inputs if tensor.producer is not None]


def _near(node: OpNode) -> list[OpNode]:
    return list(dict.fromkeys((node, *_makers(node))))


def _upstream(node: OpNode, depth: int) -> list[OpNode]:
    """The node and those before it, up to a number of steps."""
    found = {node: None}
    for _ in range(depth):
        found.update(dict.fromkeys(maker for one in found for maker in _makers(one)))
    return list(found)


def _read(ir: IR, tensor: TensorMeta) -> bool:
    """Add a consumer of a tensor, and return its result from the graph."""
    made = _added(ir, "aten.eq.Tensor", [tensor, tensor], {}, len(ir.nodes))
    ir.graph_outputs = [*ir.graph_outputs, made]
    return True


def _added(ir: IR, op_type: str, inputs: list[TensorMeta], attrs: dict[str, Any], place: int) -> TensorMeta:
    names = FreeNames({tensor.name for tensor in ir.tensors()} | {node.name for node in ir.nodes})
    name = names.free(op_type.split(".")[1])
    made = TensorMeta(name, inputs[0].shape, inputs[0].dtype)
    node = OpNode(name, op_type, inputs, [made], attrs)
    name_arguments(node)
    ir.nodes.insert(place, node)
    return made


def _redirect(node: OpNode, old: TensorMeta, new: TensorMeta) -> None:
    """Replace the first use of the old tensor by the new one."""
    place = node.inputs.index(old)
    node.set_inputs((*node.inputs[:place], new, *node.inputs[place + 1 :]), node.args)


def _with_axes(node: OpNode, change: Callable[[int, int], int]) -> bool:
    rank = len(node.inputs[0].shape) if node.inputs else 0
    before = dict(node.attrs)
    for name, value in before.items() if rank else ():
        if name in _AXES and type(value) is int:
            node.attrs[name] = change(value, rank)
        elif name in _AXES and isinstance(value, list) and all(type(axis) is int for axis in value):
            node.attrs[name] = [change(axis, rank) for axis in value]
    return node.attrs != before


def _retype(ir: IR) -> None:
    """Infer the types of all tensors again, from the first changed node on."""
    shapes = Shapes(ir)
    for node in ir.nodes:
        for tensor, made in zip(node.outputs, _made(shapes, node), strict=False):
            tensor.shape, tensor.dtype, tensor.stride = made.shape, made.dtype, made.stride


def _made(shapes: Shapes, node: OpNode) -> Iterator[TensorMeta]:
    yield from shapes.of(node) or ()
