"""Make implicit inputs explicit: inner tensors of weights, and constants inside branches, become inputs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from torch_ir.errors import ConversionError
from torch_ir.ops.tensor_data import plain_tensors
from torch_ir.ops.torch_internals import HigherOrderOperator, detect_fake_mode, is_traceable_wrapper_subclass, updated

# Operators with bodies -> the arguments that list the operands of the bodies; none if all the rest are operands.
_OPERANDS = {
    "cond": (3,),
    "while_loop": (3,),
    "scan": (3,),
    "map_impl": (2,),
    "strict_mode": (1,),
    "hints_wrapper": (1,),
    "flex_attention": (7, 8),
    "invoke_subgraph": (),
    "wrap_with_set_grad_enabled": (),
    "wrap_with_autocast": (),
}
_INNER = "access_subclass_inner_tensor"


def with_explicit_inputs(program: ExportedProgram) -> ExportedProgram:
    """Return the program itself, or a copy with more inputs."""
    has_parts = any(map(_is_composite, program.graph_module.graph.nodes))
    has_constants = any(map(_constants, graphs(program.graph_module)))
    return _Explicit(program).result() if has_parts or has_constants else program


class _Explicit:
    """One program during the conversion: its graph, the specification of each input, and their values."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.module = copied(program.graph_module)
        self.specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self.constants = dict(program.constants)
        self.mode: Any = detect_fake_mode([node.meta.get("val") for node in self.module.graph.nodes])
        self.lifted: dict[tuple[fx.GraphModule, ...], dict[str, torch.Tensor]] = {}

    def result(self) -> ExportedProgram:
        for node in list(filter(_is_composite, self.module.graph.nodes)):
            self._take_apart(node)
        self._lift(self.module)
        for name, readers in _constants(self.module).items():
            self._add_constant(name, readers)
        self.module.recompile()
        signature = copy.deepcopy(self.program.graph_signature)
        signature.input_specs = [self.specs[node.name] for node in placeholders(self.module)]
        returned: Any = self.module.graph.output_node().args[0]
        for spec, node in zip(signature.output_specs, returned, strict=True):
            if isinstance(spec.arg, TensorArgument):
                spec.arg = TensorArgument(node.name)
        state_dict = plain_parameters(self.program.state_dict)
        return updated(self.program, self.module, signature, state_dict=state_dict, constants=self.constants)

    # -- weights that wrap other tensors ------------------------------------------------------------------------------

    def _take_apart(self, node: fx.Node) -> None:
        """Replace an input by one for each of its inner tensors."""
        spec = self.specs[node.name]
        if spec.kind is InputKind.USER_INPUT:
            kind = type(node.meta["val"]).__name__
            raise ConversionError(f"input {node.name!r} is a {kind}, which wraps other tensors; pass those")
        parts = plain_tensors({str(spec.target): node.meta["val"]})
        inputs = {}
        with self.module.graph.inserting_before(node):
            for key, value in parts.items():
                inputs[key] = self._input(f"{node.name}{key.removeprefix(str(spec.target)).replace('.', '_')}", value)
                self.specs[inputs[key].name] = InputSpec(
                    spec.kind, TensorArgument(inputs[key].name), key, spec.persistent
                )
        self._replace(node, str(spec.target), inputs)

    def _replace(self, node: fx.Node, key: str, inputs: dict[str, fx.Node]) -> None:
        for user in list(node.users):
            if _INNER not in str(user.target):
                raise ConversionError(f"{user.name} reads {key!r}, a {type(node.meta['val']).__name__}, as a whole")
            inner = f"{key}.{user.args[1]}"
            if inner in inputs:
                user.replace_all_uses_with(inputs[inner])
                self.module.graph.erase_node(user)
            else:
                self._replace(user, inner, inputs)
        self.module.graph.erase_node(node)

    def _input(self, name: str, value: torch.Tensor) -> fx.Node:
        made = self.module.graph.placeholder(name)
        made.meta["val"] = value
        return made

    # -- constants inside branches ------------------------------------------------------------------------------------

    def _lift(self, module: fx.GraphModule) -> None:
        """Move constants of bodies into the calling graph, and pass them as operands."""
        for call in list(module.graph.nodes):
            bodies = _bodies(module, call)
            group = tuple(bodies.values())
            if group and group not in self.lifted:
                for body in group:
                    self._lift(body)
                self.lifted[group] = self._as_operands(bodies)
            if group:
                _give(module, call, self.lifted[group])

    def _as_operands(self, bodies: dict[str, fx.GraphModule]) -> dict[str, torch.Tensor]:
        """Add the constants of all bodies of a call as inputs to each of them."""
        found: dict[str, torch.Tensor] = {}
        for target, body in bodies.items():
            for name, readers in _constants(body).items():
                value = found[f"{target}{name}"] = getattr(body, name)
                made = {other: self._operand(other, f"{target}{name}", value) for other in bodies.values()}
                _replace_all(body, name, readers, made[body])
        for body in bodies.values():
            body.recompile()
        return found

    def _operand(self, body: fx.GraphModule, name: str, value: torch.Tensor) -> fx.Node:
        last = placeholders(body)[-1:]
        with body.graph.inserting_after(last[0]) if last else body.graph.inserting_before():
            made = body.graph.placeholder(name)
        made.meta["val"] = self.mode.from_tensor(value, static_shapes=True)
        return made

    def _add_constant(self, name: str, readers: list[fx.Node]) -> None:
        """Add a constant of the outermost graph as an input before the user's."""
        kinds = {node: self.specs[node.name].kind for node in placeholders(self.module)}
        first = next((node for node, kind in kinds.items() if kind is InputKind.USER_INPUT), readers[0])
        value = self.constants[name] = getattr(self.module, name)
        with self.module.graph.inserting_before(first):
            made = self._input(f"c_{name}", self.mode.from_tensor(value, static_shapes=True))
        self.specs[made.name] = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(made.name), name)
        _replace_all(self.module, name, readers, made)


def _replace_all(module: fx.GraphModule, name: str, readers: list[fx.Node], made: fx.Node) -> None:
    """Replace an attribute by an input."""
    for node in readers:
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
    delattr(module, name)


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy whose nodes keep their names; fx renames those that are Python builtins, such as `input`."""
    twin = copy.deepcopy(module)
    for old, new in zip(graphs(module), graphs(twin), strict=True):
        for node, made in zip(old.graph.nodes, new.graph.nodes, strict=True):
            made.name = node.name
        new.recompile()
    return twin


def graphs(module: nn.Module) -> list[fx.GraphModule]:
    return [child for child in module.modules() if isinstance(child, fx.GraphModule)]


def _give(module: fx.GraphModule, call: fx.Node, constants: dict[str, torch.Tensor]) -> None:
    """Add constants to the calling graph as attributes, and to a call as operands."""
    given = []
    for name, value in constants.items():
        module.register_buffer(name, value)
        with module.graph.inserting_before(call):
            given.append(module.graph.get_attr(name))
    places = _OPERANDS[str(call.target)]
    args: list[Any] = list(call.args)
    for place in places:
        args[place] = (*args[place], *given)
    call.args = tuple(args) if places else (*args, *given)


def _bodies(module: fx.GraphModule, call: fx.Node) -> dict[str, fx.GraphModule]:
    """Return the graphs that a call refers to, by name."""
    if not isinstance(call.target, HigherOrderOperator) or str(call.target) not in _OPERANDS:
        return {}
    named = [str(argument.target) for argument in call.all_input_nodes if argument.op == "get_attr"]
    found = {name: getattr(module, name) for name in named}
    return {name: body for name, body in found.items() if isinstance(body, fx.GraphModule)}


def _constants(module: fx.GraphModule) -> dict[str, list[fx.Node]]:
    """Return the tensor attributes of a graph, with the nodes that read them."""
    found: dict[str, list[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(getattr(module, str(node.target), None), torch.Tensor):
            found.setdefault(str(node.target), []).append(node)
    return found


def placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _is_composite(node: fx.Node) -> bool:
    return node.op == "placeholder" and is_traceable_wrapper_subclass(node.meta.get("val"))


def plain_parameters(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict of plain tensors that keeps tied tensors tied."""
    made: dict[int, torch.Tensor] = {}
    plain = plain_tensors(state_dict)
    inner = plain.keys() - state_dict.keys()
    return {
        key: made.setdefault(id(value), nn.Parameter(value, requires_grad=False)) if key in inner else value
        for key, value in plain.items()
    }
