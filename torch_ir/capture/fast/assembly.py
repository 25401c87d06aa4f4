"""`Assembly`: turns a tape into an IR, with the names that torch.export gives to weights, inputs and calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from torch_ir.capture.fast.call_tape import Step
from torch_ir.capture.fast.shape_recorder import Recorder
from torch_ir.capture.fast.shape_tensors import STALE, Form, Ghost, NotCoveredError, SizeCannotVaryError, form_of_input
from torch_ir.capture.fast.symbolic_size import SYMBOLIC, Size, live_size
from torch_ir.capture.fast.values_on_demand import Given, NoValuesError
from torch_ir.capture.naming.constant_keys import ConstantKeys
from torch_ir.capture.naming.export_names import Names, functional_name, names_of_inputs, weight_name
from torch_ir.capture.naming.running_modules import Scope
from torch_ir.capture.program.functional_writes import Writes, without_writes
from torch_ir.capture.state.held_contents import PLAIN
from torch_ir.capture.state.input_questions import note_inputs
from torch_ir.capture.walk import own_attributes, walk, weights
from torch_ir.ir import IR, Branch, OpNode, Origin, Param, Slot, TensorMeta
from torch_ir.ir.graph.node import copy_value
from torch_ir.ops.effects import changes_elements
from torch_ir.ops.pytree import to_structure
from torch_ir.ops.registry import get_conversion_fn
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.ops.torch_internals import FakeTensor, count_as_parameter, pytree
from torch_ir.ops.torch_types import to_name

if TYPE_CHECKING:
    from torch_ir.capture.fast.data_numbers import DataNumbers
    from torch_ir.capture.fast.varying_sizes import OpenSizes
    from torch_ir.capture.fast.written_sizes import WrittenSizes

_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer, FakeTensor)
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_CONSTANTS = (bool, int, float, complex, str, type(None), *_NAMED)
_DETACH_, _ITEM = torch.ops.aten.detach_.default, torch.ops.aten.item.default
_ASSERT = torch.ops.aten._assert_scalar.default
_DROPPED = (torch.ops.aten.detach.default, _ITEM)
_LITERAL = torch.ops.aten.lift_fresh_copy.default


class Assembly:
    """A graph under construction: its inputs and weights, and the tensor of each value on the tape."""

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self.model = model
        self.recorder = recorder
        self.tape = recorder.tape
        self.names = Names()
        self.sizes: WrittenSizes | None = None  # open sizes, after the run
        self.tensors: dict[int, TensorMeta] = {}
        self.inputs: list[TensorMeta] = []
        self._inputs: list[tuple[str, int | None, Any]] = []
        self._in_spec: Any = None
        self._weights: dict[int, _Weight] = {}
        self._writes = Writes()
        self._origins: dict[tuple[Scope | None, str], Origin] = {}

    # -- before the run -----------------------------------------------------------------------------------------------

    def weights(self) -> Iterator[tuple[MutableMapping[str, Any], str, Ghost]]:
        """Yield a ghost for every parameter and buffer, with the table and the name under which to put it."""
        for weight in weights(self.model):
            yield weight.table, weight.name, self._ghost(weight.key, weight.tensor, weight.kind)

    def held_elsewhere(self) -> Iterator[tuple[MutableMapping[str, Any], str, Any]]:
        """Yield attributes that also hold weights, with ghosts in their place: forward may compare identities."""
        for _, module in walk(self.model):
            for name, value in own_attributes(module):
                if type(value) in (list, tuple, dict) and value and self._is_held(value):
                    swapped = pytree.tree_map_only(torch.Tensor, self._ghost_of, value)
                    yield module.__dict__, name, swapped

    def _is_held(self, value: Any) -> bool:
        if PLAIN.issuperset(map(type, value.values() if type(value) is dict else value)):
            return False
        return any(id(leaf) in self._weights for leaf in pytree.tree_leaves(value))

    def _ghost_of(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._weights[id(tensor)].ghost if id(tensor) in self._weights else tensor

    def _ghost(self, key: str, tensor: torch.Tensor, kind: str) -> Ghost:
        """Return the ghost of a tensor; tied weights have one."""
        weight = self._weights.get(id(tensor))
        if weight is not None:
            if kind == "temporary" or weight.kind == "temporary":
                raise NotCoveredError(
                    f"{key!r} is the same tensor as {weight.keys[0]!r}, and one of them is not in the state dict"
                )
            weight.keys.append(key)
            return weight.ghost
        if type(tensor) not in _PLAIN:
            raise NotCoveredError(f"{key!r} is a {type(tensor).__name__}")
        ghost = self.tape.given(tensor)
        if type(tensor) is nn.Parameter or isinstance(tensor, nn.Parameter):  # the second is slow
            count_as_parameter(ghost)
        self.recorder.ghosts[id(tensor)] = ghost  # other objects may hold it, too
        self._weights[id(tensor)] = self._weights[id(ghost)] = _Weight(ghost, ghost.value, [key], kind, tensor)
        return ghost

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the inputs with ghosts for tensors."""
        leaves, self._in_spec = pytree.tree_flatten((args, kwargs))
        names = names_of_inputs(self.model, args, kwargs, len(leaves))
        replaced: list[Any] = []
        forms = [None] * len(leaves) if self.recorder.sizes is None else self.recorder.sizes.inputs
        for name, leaf, form in zip(names, leaves, forms, strict=True):
            if type(leaf) in _PLAIN:
                ghost = self._ghost_of_input(leaf, form or form_of_input(leaf))
                replaced.append(self.recorder.given(leaf, ghost))
                self._inputs.append((name, ghost.value, leaf))
            elif isinstance(leaf, _CONSTANTS):
                replaced.append(leaf)
                self._inputs.append((name, None, leaf))
            else:
                raise NotCoveredError(f"input {name!r} is a {type(leaf).__name__}")
        note_inputs(replaced)
        args, kwargs = pytree.tree_unflatten(replaced, self._in_spec)
        return args, kwargs

    def given_again(self) -> tuple[list[int], tuple[Any, Any]]:
        """Return inputs for another run, with new ghosts, and the values of these."""
        made = [
            leaf if value is None else self._ghost_of_input(leaf, self.tape.forms[value])
            for _, value, leaf in self._inputs
        ]
        values = [leaf.value for leaf, (_, value, _) in zip(made, self._inputs, strict=True) if value is not None]
        return values, pytree.tree_unflatten(made, self._in_spec)

    def _ghost_of_input(self, leaf: torch.Tensor, form: Form) -> Ghost:
        ghost = self.tape.given(leaf, form)
        if type(leaf) is nn.Parameter:
            count_as_parameter(ghost)
        return ghost

    def values_given(self) -> tuple[list[int], list[int]]:
        """Return the values of weights, and of inputs."""
        inputs = [value for _, value, _ in self._inputs if value is not None]
        return [weight.value for weight in dict.fromkeys(self._weights.values())], inputs

    def inputs_by_name(self) -> dict[str, torch.Tensor]:
        """Return the example input of each tensor input of the graph, by its name there."""
        return {self.tensors[value].name: leaf for _, value, leaf in self._inputs if value is not None}

    def given_tensor(self, value: int) -> Given:
        """Return the tensor of a value from before the run."""
        if value in self.tape.constants:
            return Given("", self.tape.constants[value][0])
        if self.recorder.with_gradients:  # whose graph must be right for every step
            raise NoValuesError("a training step reads a value that depends on its weights or inputs")
        for weight in self._weights.values():
            if weight.value == value:
                return Given(weight.keys[0], weight.tensor)
        return next(Given(name, leaf) for name, known, leaf in self._inputs if known == value)

    # -- after it -----------------------------------------------------------------------------------------------------

    def ir(self, result: Any, minimums: Mapping[str, int], decisions: Sequence[Any]) -> IR:
        """Return the graph of the recorded run, which returned `result`.

        `minimums` are the requested lower bounds of sizes, `decisions` the model's decisions on sizes.
        """
        if self.recorder.sizes is not None:
            self.sizes = _written(self.recorder.sizes)
        for weight in self._weights.values():
            if self.tape.memory[weight.ghost.value] != self.tape.memory[weight.value]:
                raise NotCoveredError(f"forward replaces the memory of {weight.keys[0]!r}")
        leaves, out_spec = taken_apart(result)
        leaves = [live_size(leaf) if type(leaf) in SYMBOLIC else leaf for leaf in leaves]
        strange = next((leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, Size, *_CONSTANTS))), None)
        if strange is not None:
            raise NotCoveredError(f"the model returns a {type(strange).__name__}")
        returned = [self.recorder.known(leaf) for leaf in leaves]
        if any(type(leaf) is Ghost and leaf.run is not self.tape.run for leaf in returned):
            raise NotCoveredError(f"the model returns {STALE}")
        values = [leaf.value for leaf in returned if type(leaf) is Ghost]
        numbers = self.recorder.queries.numbers
        read = [] if numbers is None else numbers.values_of([leaf for leaf in leaves if type(leaf) is Size])
        input_leaves = [self._input(*given) for given in self._inputs]
        params = [self._param(weight) for weight in dict.fromkeys(self._weights.values())]
        live = self._live([*values, *read])
        params += self._constants(live)
        nodes = list(self._nodes(live))
        if self._writes.written:
            self._writes.memory = {tensor: self.tape.memory[value] for value, tensor in self.tensors.items()}
        functional = without_writes(
            nodes, [*params, *self.inputs], [self.tensors[value] for value in values], self._writes, self.names.taken
        )
        if any(target.param is not None and target.param.kind == "constant" for target, _ in functional.mutations):
            raise NotCoveredError("forward writes to a tensor that is not a registered buffer")
        slots = map(Slot, itertools.count())
        output_leaves = [next(slots) if type(leaf) is Ghost else to_name(self._value(leaf)) for leaf in returned]
        ir = IR(
            functional.nodes,
            self.inputs,
            functional.returned,
            params=params,
            mutations=functional.mutations,
            symbols=self._symbolic.symbols(minimums) if self._symbolic else (),
            constraints=self.sizes.constraints(self.inputs, decisions) if self.sizes else (),
            input_tree=cast(Branch, to_structure(self._in_spec, iter(input_leaves))),  # of arguments and keywords
            output_tree=to_structure(out_spec, iter(output_leaves)),
            pytorch_version=torch.__version__,
            fixed_layout=functional.layout,
            modules=self._modules(),
        )
        return ir.check()

    def _input(self, name: str, value: int | None, leaf: Any) -> Any:
        """Return the leaf of the input structure: a slot for a tensor, else the value itself."""
        name = self.names.placeholder(name)
        if value is None:
            return to_name(leaf)
        self.inputs.append(self._tensor(name, value))
        if self.sizes is not None and self.tape.forms[value].is_open:
            self.sizes.bind(self.inputs[-1], self.tape.forms[value])
        return Slot(len(self.inputs) - 1)

    def _param(self, weight: _Weight) -> TensorMeta:
        prefix = "p" if weight.kind == "parameter" else "b"
        names = [self.names.placeholder(weight_name(prefix, key)) for key in weight.keys]
        made = self._tensor(names[0], weight.value)
        is_known = weight.kind == "temporary" and (not weight.tensor.is_meta or weight.tensor.numel() == 0)
        made.param = Param(tuple(weight.keys), weight.kind, from_tensor(weight.tensor) if is_known else None)
        return made

    def _constants(self, live: list[bool]) -> Iterator[TensorMeta]:
        """Yield the constants: tensors from before the run, with the attribute's name or numbered."""
        if not self.tape.constants:
            return
        unread = [step for step, stays in zip(self.tape.steps, live, strict=True) if not stays]
        dropped = {step.inputs[0] for step in unread if step.rule.func is _LITERAL}
        keys = ConstantKeys(self.model)
        for value, (tensor, scope) in self.tape.constants.items():
            if value in dropped:
                continue
            key = keys.key(tensor, scope.module if scope is not None else "")
            made = self._tensor(self.names.placeholder(weight_name("c", key)), value)
            made.param = Param((key,), "constant", from_tensor(tensor))
            yield made

    def _tensor(self, name: str, value: int) -> TensorMeta:
        made = self.tensors[value] = self._described(name, self.tape.forms[value])
        return made

    def _described(self, name: str, form: Form) -> TensorMeta:
        if form.is_open and self.sizes is not None:
            return self.sizes.described(name, form)
        return TensorMeta(name, form.shape, form.dtype_name, stride=form.written_stride)

    def _value(self, value: Any) -> Any:
        """Return an attribute or returned value in the form of the IR."""
        return self._symbolic.scalar(value) if self._symbolic is not None else copy_value(value)

    @property
    def _symbolic(self) -> WrittenSizes | DataNumbers | None:
        """Return what writes symbolic numbers: open sizes, or numbers that are read from values."""
        return self.sizes or self.recorder.queries.numbers

    def _live(self, returned: list[int]) -> list[bool]:
        """Return whether each step is kept: torch.export drops unread literals, `detach` and `item`, nothing else."""
        steps, live, read = self.tape.steps, [True] * len(self.tape.steps), set(returned)
        numbers = self.recorder.queries.numbers
        literals = {step.first for step in steps if step.rule.func is _LITERAL}
        if not literals and not any(step.rule.func in _DROPPED for step in steps):
            return live
        for at in range(len(steps) - 1, -1, -1):
            step = steps[at]
            func = step.rule.func
            is_literal = func is _LITERAL or (func is _DETACH_ and step.inputs[0] in literals)
            live[at] = step.first in read or not (func in _DROPPED or is_literal)
            if live[at]:
                read.update(step.inputs if numbers is None else (*step.inputs, *numbers.values_of(step.rule.sizes)))
        return live

    def _nodes(self, live: list[bool]) -> Iterator[OpNode]:
        steps = self.tape.steps
        names = self.names.calls([step.rule.name for step in steps])
        self.names.taken.difference_update(name for name, stays in zip(names, live, strict=True) if not stays)
        for op_type in {step.rule.op_type for step, stays in zip(steps, live, strict=True) if stays}:
            if get_conversion_fn(op_type) is not None:
                raise NotCoveredError(f"{op_type} has a conversion that the user registered")
        for step, name, stays in zip(steps, names, live, strict=True):
            if stays:
                yield self._node(step, name)

    def _node(self, step: Step, name: str) -> OpNode:
        rule, inputs, first, scope, line, function = step
        if rule.new_value is not None:
            name = self.names.left.free(functional_name(name))
        place = (scope, line)
        origin = self._origins.get(place)
        if origin is None:
            origin = self._origins[place] = scope.origin(line) if scope else Origin(source=line)
        if function:
            origin = origin._replace(function=function)
        reads = map(self.tensors.__getitem__, inputs)
        outputs = (self._tensor(name, first),) if rule.only_output is not None else self._outputs(name, step)
        if rule.func is _ITEM and self.recorder.queries.numbers is not None:
            self.recorder.queries.numbers.bind(first, outputs[0])
        attrs = rule.attrs
        if rule.copied:
            attrs = {**attrs, **{key: self._value(attrs[key]) for key in rule.copied}}
        if rule.func is _ASSERT and rule.sizes:
            attrs = {**attrs, "assert_msg": f"the graph holds only where {attrs['self']}"}
        node = OpNode(name, rule.op_type, reads, outputs, attrs, args=rule.args, origin=origin)
        if rule.new_value is not None and changes_elements(rule.func):
            self._writes.written[node] = node.inputs[0]
        return node

    def _outputs(self, name: str, step: Step) -> Sequence[TensorMeta]:
        if step.rule.new_value is not None:
            self.tensors[step.first] = self._described(name, step.rule.new_value)
            return [self.tensors[step.first]]
        names = self._elements(name, step)
        return [self._tensor(element, step.first + number) for number, element in enumerate(names)]

    def _elements(self, name: str, step: Step) -> list[str]:
        """Return the names of a call's results: its own name, with a number if there may be several."""
        elements = step.rule.elements
        return [name if element is None else self.names.fresh(f"{name}_{element}") for element in elements]

    def _modules(self) -> dict[str, str]:
        """Return the modules whose calls are in the graph: path -> full class name."""
        scopes = dict.fromkeys([step.scope for step in self.tape.steps])
        found: dict[str, str] = {}
        seen: set[Scope] = set()
        for scope in scopes:
            while scope is not None and scope not in seen:
                seen.add(scope)
                found[scope.module] = scope.kind
                scope = scope.outside
        return dict(sorted(found.items()))


def taken_apart(result: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a model's result; data classes that torch does not know are registered with it."""
    leaves, spec = pytree.tree_flatten(result)
    unknown = {type(leaf) for leaf in leaves if is_dataclass(leaf)}
    for kind in unknown:
        torch.export.register_dataclass(kind)
    return taken_apart(result) if unknown else (leaves, spec)


@dataclass(eq=False)
class _Weight:
    """A parameter or buffer: its ghost, first value, keys, kind and tensor."""

    ghost: Ghost
    value: int
    keys: list[str]
    kind: str
    tensor: torch.Tensor


def _written(sizes: OpenSizes) -> WrittenSizes:
    """Return the open sizes after the run; raise if they cannot vary as requested."""
    from torch_ir.capture.fast.size_environment import Violation  # slow to import, and only needed for open sizes
    from torch_ir.capture.fast.written_sizes import WrittenSizes

    result = sizes.result()
    if isinstance(result, Violation):
        raise SizeCannotVaryError(f"a size cannot vary as asked: {result.message}")
    return WrittenSizes(result)
