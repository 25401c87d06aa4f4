"""Decompose one operator as torch does, without running a kernel.

    layer_norm = aten.layer_norm.default(input=x, ...)
    decomposed(layer_norm)   ->   a graph of one node: aten.native_layer_norm.default(input=x, ...)

One step at a time: the result may be decomposed further, so that operators which a target supports are kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from torch_ir.errors import ConversionError, TorchIRError, first_line
from torch_ir.ir import IR, Device, Expr, OpNode, TensorMeta
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ops.calling import empty, keywords, mapped, split_arguments
from torch_ir.ops.effects import is_uninitialised, may_alias, writes_in_place
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.own_decompositions import OWN_DECOMPOSITIONS
from torch_ir.ops.safe_shape_calls import may_call_rule
from torch_ir.ops.schema import arguments, bind, find_operator, operator_name
from torch_ir.ops.shared_by_threads import tracing
from torch_ir.ops.torch_internals import DisableTorchFunction, OpOverload, can_decompose, decomposition_table
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name, to_name, to_torch

NO_RULE = "torch has no decomposition of it"
PAIRS = "aten.view_as_real.default"
READS_PAIRS = "torch's decomposition does not read conjugated numbers"
_CONJUGATES = frozenset(f"aten.{name}.default" for name in ("_conj", "conj", "adjoint", "mH", "matrix_H"))
# torch's rule reads the class of a target that is ignored, which may be none; the operator's own kernel does not
_READS_IGNORED = frozenset(("aten.nll_loss.default",))
_SUMS = ("prims.sum.default", "prims.prod.default")


def decomposed(node: OpNode, device: str = "cpu", *, prims: bool = False) -> IR | str:
    """Return the body of a function that computes the node with simpler operators, or why there is none.

    Its inputs and outputs correspond to those of the node, in order. It is functional, and new tensors are on `device`.
    With `prims`, its operators may be torch's primitives. Where torch has no decomposition, ours is used.
    """
    found = operator_of(node)
    if isinstance(found, str):
        return found
    if node.op_type in OWN_DECOMPOSITIONS:
        return recorded(node, OWN_DECOMPOSITIONS[node.op_type], device)
    shapes: list[Any] = [tensor.shape for tensor in node.inputs]
    if not may_call_rule(found, shapes, {tensor.dtype for tensor in node.inputs}, node.attrs):
        return NO_RULE
    why = NO_RULE
    for rule, recorder in _rules(found):
        body = _recorded(node, found, rule, recorder, device, prims)
        if isinstance(body, IR):
            return body
        why = body
    return why


def recorded(node: OpNode, rule: Callable[..., Any], device: str = "cpu") -> IR | str:
    """Like `decomposed`, with a given rule: a function of the operator's arguments, which may call the operator.

    A rule that does not apply returns NotImplemented.
    """
    found = operator_of(node)
    if isinstance(found, str):
        return found
    return _traced(node, found, rule, partial(make_fx, pre_dispatch=True), device)


def operator_of(node: OpNode) -> OpOverload | str:
    """Return the operator of a node if it can be recorded, or why it cannot."""
    found = find_operator(node.op_type)
    if not isinstance(found, OpOverload):
        return "it is not an operator of torch"
    if not node.has_named_args:
        return "its arguments have no names"
    if node.op_type.startswith("aten.resize"):
        return "it counts elements in the storage of its input"
    sizes = {dim for tensor in (*node.inputs, *node.outputs) for dim in tensor.shape if isinstance(dim, str)}
    sizes.update(value for value in values_in(node.attrs) if isinstance(value, Expr))
    if sizes:
        return f"its sizes vary: {', '.join(sorted(map(str, sizes)))}; fix them with ir.specialize(...)"
    return found


def _rules(found: OpOverload) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Yield torch's decompositions of an operator, each with a function that records it.

    First the table of decompositions, then the operator's own kernel, both keeping composite operators; then the kernel
    down to what a device would run, with in-place writes functionalised.
    """

    def own(*args: Any, **kwargs: Any) -> Any:
        with DisableTorchFunction():  # otherwise the recorder sees the operator itself
            return found.decompose(*args, **kwargs)

    def whole(function: Callable[..., Any]) -> Callable[..., Any]:
        return make_fx(function, pre_dispatch=True)

    def functional(function: Callable[..., Any]) -> Callable[..., Any]:
        return make_fx(torch.func.functionalize(function))

    if found in decomposition_table and operator_name(found) not in _READS_IGNORED:
        yield decomposition_table[found], whole
    if can_decompose(found):
        yield own, whole
        yield found, functional


def _recorded(
    node: OpNode, found: OpOverload, rule: Callable[..., Any], recorder: Callable[..., Any], device: str, prims: bool
) -> IR | str:
    """Record a decomposition of torch for the arguments of a node, if it is simpler than the node."""
    body = _traced(node, found, rule, recorder, device)
    if isinstance(body, str):
        return body
    if any(step.op_type == node.op_type or _is_no_gain(step, prims) for step in body.nodes):
        return NO_RULE
    if any(map(_reads_from_an_offset, body.nodes)):
        return "torch's decomposition counts elements from the start of the storage, which a view does not have"
    if any(step.op_type == PAIRS for step in body.nodes) and any(map(may_be_conjugated, node.inputs)):
        return READS_PAIRS
    return "torch's decomposition writes in place" if any(map(writes_in_place, body.nodes)) else body


def _traced(
    node: OpNode, found: OpOverload, rule: Callable[..., Any], recorder: Callable[..., Any], device: str
) -> IR | str:
    """Record the calls that a rule makes for the arguments of a node."""

    def computed(*tensors: Tensor) -> list[Tensor]:
        bound = keywords(dict(zip(node.args, tensors, strict=True)), node.attrs, _on_meta)
        known = arguments(found)
        made = rule(
            *(bound[argument.name] for argument in known if not argument.keyword_only),
            **{argument.name: bound[argument.name] for argument in known if argument.keyword_only},
        )
        if made is NotImplemented:
            raise ConversionError(NO_RULE)
        return list(made) if isinstance(made, (list, tuple)) else [made]

    try:
        with tracing(), NeutralState():  # torch records in one thread at a time
            return _Steps(node, device).graph(recorder(computed)(*map(_empty, node.inputs)))
    except TorchIRError as error:
        return str(error)
    except Exception as error:  # anything that torch raises inside its own rule
        return f"torch's decomposition fails: {first_line(error)[:100]}"


def _is_no_gain(step: OpNode, prims: bool) -> bool:
    """Whether a step is an unwanted primitive, returns another dtype, or allocates memory to fill it later."""
    return (step.op_type.startswith("prims.") and not prims) or _is_widened(step) or is_uninitialised(step)


def _reads_from_an_offset(step: OpNode) -> bool:
    """Whether a step takes elements by their places in the storage of its input, which may be a view."""
    is_strided = step.op_type.startswith(("aten.as_strided", "prims.as_strided"))
    return is_strided and step.attrs.get("storage_offset") is not None


def may_be_conjugated(tensor: TensorMeta) -> bool:
    """Whether the numbers of a tensor may be stored without a conjugation that their view implies."""
    left, seen = [tensor], {tensor}
    while left:
        maker = left.pop().producer
        if maker is None or not any(made.dtype.startswith("complex") for made in maker.outputs):
            continue
        if maker.op_type in _CONJUGATES:
            return True
        operator = find_operator(maker.op_type)
        if isinstance(operator, OpOverload) and may_alias(operator):
            left += [source for source in maker.inputs if source not in seen]
            seen.update(maker.inputs)
    return False


def _is_widened(step: OpNode) -> bool:
    """Whether torch's kernel returns a wider dtype than its shape rule says: sums, and booleans with a number."""
    if not step.op_type.startswith("prims.") or not step.inputs:
        return False
    dtype = step.inputs[0].dtype
    if step.op_type in _SUMS:
        return dtype in ("bool", "uint8", "int8", "int16", "int32")
    return dtype == "bool" and any(type(step.attrs.get(name)) in (int, float) for name in ("self", "other"))


def _empty(tensor: TensorMeta) -> Tensor:
    return empty(tensor.shape, TORCH_DTYPES[tensor.dtype], tensor.stride)


def _on_meta(value: Any) -> Any:
    return to_torch(Device("meta") if isinstance(value, Device) else value)


class _Steps:
    """The graph of the recorded calls of one decomposition."""

    def __init__(self, node: OpNode, device: str) -> None:
        self.node = node
        self.device = Device(device)
        self.taken = Names()
        self.made: dict[Any, Any] = {}  # recorded call -> tensor, or tuple of tensors

    def graph(self, module: fx.GraphModule) -> IR:
        module.graph.eliminate_dead_code()
        inputs = [
            TensorMeta(fresh(name.replace(".", "_"), self.taken), tensor.shape, tensor.dtype, stride=tensor.stride)
            for name, tensor in zip(self.node.args, self.node.inputs, strict=True)
        ]
        places = iter(inputs)
        steps: list[OpNode] = []
        for call in module.graph.nodes:
            if call.op == "placeholder":
                self.made[call] = next(places)
            elif call.op == "get_attr":
                raise ConversionError("torch's decomposition holds a constant")
            elif call.target is operator.getitem:
                self.made[call] = self.made[call.args[0]][call.args[1]]
            elif call.op == "call_function" and _is_idle(call):
                self.made[call] = self.made[call.args[0]]
            elif call.op == "call_function":
                steps.append(self._step(call))
        returned: Any = module.graph.output_node().args[0]
        outputs: list[TensorMeta] = [self.made[result] for result in returned if result is not None]
        for expected, made in zip(self.node.outputs, outputs, strict=True):
            expected.agree_with(TensorMeta(expected.name, made.shape, made.dtype))
        return IR(steps, inputs, outputs)

    def _step(self, call: fx.Node) -> OpNode:
        target: Any = call.target
        tensors, others = split_arguments(
            bind(target, call.args, call.kwargs), lambda value: isinstance(value, fx.Node)
        )
        inputs = {name: self.made[node] for name, node in tensors.items()}
        attrs = {name: mapped(value, self._named) for name, value in others.items()}
        name, value = fresh(call.name, self.taken), call.meta["val"]
        several = isinstance(value, (list, tuple))
        made = [_described(f"{name}_{index}", item) for index, item in enumerate(value)] if several else []
        self.made[call] = made if several else _described(name, value)
        outputs = made if several else [self.made[call]]
        return OpNode(name, operator_name(target), inputs.values(), outputs, attrs, args=inputs)

    def _named(self, value: Any) -> Any:
        """Convert torch's value to the IR's; the meta device becomes the graph's."""
        name = to_name(value)
        return self.device if isinstance(name, Device) else name


def _is_idle(call: fx.Node) -> bool:
    """Whether a conversion is a no-op."""
    if call.target is not torch.ops.aten.to.dtype or bind(call.target, call.args, call.kwargs)["copy"]:
        return False
    source: Any = call.args[0]
    return bool(source.meta["val"].dtype == call.meta["val"].dtype)


def _described(name: str, value: Any) -> TensorMeta:
    if not isinstance(value, Tensor):
        raise ConversionError(f"torch's decomposition makes a {type(value).__name__}")
    stride = None if value.is_contiguous() else value.stride()
    return TensorMeta(name, value.shape, dtype_name(value.dtype), stride=stride)
