"""`convert_exported_program`: convert an ExportedProgram to an IR."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind

from torch_ir.capture.export.dynamic import DECISIONS
from torch_ir.capture.export.fake_weights import is_blank
from torch_ir.capture.export.symbolic_sizes import SymbolNames, shape_environment
from torch_ir.capture.program.functional import Twins, functionalised, standard_form
from torch_ir.capture.program.functional_writes import UnfollowedWriteError
from torch_ir.capture.program.fx_calls import Calls, returned_leaf
from torch_ir.capture.program.lift_constants import graphs
from torch_ir.capture.program.may_copy import layout_of_fx_writes
from torch_ir.capture.program.provenance import modules_of
from torch_ir.capture.state.default_dtype import write_default_dtypes
from torch_ir.errors import ConversionError
from torch_ir.ir import IR, Branch, Param, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ops.pytree import to_structure
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.ops.torch_internals import memory_key
from torch_ir.ops.torch_types import to_name

_KINDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}
_MUTATIONS = frozenset(getattr(OutputKind, name) for name in dir(OutputKind) if name.endswith("_MUTATION"))


def convert_exported_program(
    exported: ExportedProgram,
    model_name: str = "",
    strict: bool = False,
    *,
    requested_minimums: Mapping[str, int] | None = None,
    always_retraced: bool = False,
) -> IR:
    """Convert an exported program to an IR in functional form.

    `strict` is accepted for compatibility: conversion is always complete or raises ConversionError.
    """
    program, twins = standard_form(exported)
    options = (model_name, requested_minimums or {})
    if twins is not None and not always_retraced:
        with contextlib.suppress(UnfollowedWriteError):
            return _converted(program, twins, *options)
    lines = [layout_of_fx_writes(module.graph) for module in graphs(program.graph_module)]
    ir = _converted(functionalised(program), {}, *options)
    ir.fixed_layout = next(filter(None, lines), "")
    return ir


def _converted(program: ExportedProgram, twins: Twins, model_name: str, requested_minimums: Mapping[str, int]) -> IR:
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    environment = shape_environment(node.meta.get("val") for node in placeholders)
    names = SymbolNames(environment)
    table = Calls(program.graph_module, names, twins)
    inputs, params, input_leaves = _read_inputs(program, table, placeholders)
    nodes = list(table.convert_calls())
    outputs, mutations, output_leaves = _read_outputs(program, table)
    functional = table.without_writes(nodes, [*params, *inputs], outputs)
    _refuse_written_constants(functional.mutations)
    ir = IR(
        functional.nodes,
        inputs,
        functional.returned,
        params=params,
        mutations=[*mutations, *functional.mutations],
        functions=table.functions,
        symbols=table.bindings.symbols(program.range_constraints, requested_minimums),
        constraints=table.bindings.constraints(environment, inputs, program.graph_module.meta.get(DECISIONS, [])),
        input_tree=_input_tree(program, input_leaves),
        output_tree=to_structure(program.call_spec.out_spec, iter(output_leaves)),
        model_name=model_name,
        pytorch_version=torch.__version__,
        fixed_layout=functional.layout or table.layout_of_functions(),
        modules=modules_of(program.graph),
    )
    return write_default_dtypes(ir.check())


def _refuse_written_constants(mutations: Sequence[tuple[TensorMeta, TensorMeta]]) -> None:
    """Refuse writes to constants: their new values have no state-dict key."""
    for target, _ in mutations:
        if target.param is not None and target.param.kind == "constant":
            raise ConversionError(f"forward writes to {target.key!r}, which is not a registered buffer; register it")


def _read_inputs(
    program: ExportedProgram, table: Calls, placeholders: list[fx.Node]
) -> tuple[list[TensorMeta], list[TensorMeta], list[Tree]]:
    """Return user inputs, weights (tied ones as one) and the leaves of the input structure."""
    inputs: list[TensorMeta] = []
    params: list[TensorMeta] = []
    leaves: list[Tree] = []
    ties = _ties(program)
    first: dict[str, TensorMeta] = {}
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        if spec.kind in _KINDS:
            key = str(spec.target)
            group = ties.get(key, (key,))
            if group[0] not in first:
                made = table.tensor(node.name, node.meta["val"])
                made.param = _param(program, spec, group)
                first[group[0]] = made
                params.append(made)
            table.tensors[node] = (first[group[0]],)
        elif spec.kind is InputKind.TOKEN:  # keeps the order of effects, which nodes do anyway
            table.tensors[node] = (None,)
        elif spec.kind is not InputKind.USER_INPUT:
            raise ConversionError(f"input {node.name} is a {spec.kind.name}, which the IR cannot hold")
        elif isinstance(spec.arg, ConstantArgument):
            leaves.append(to_name(spec.arg.value))
        else:
            made = table.tensor(node.name, node.meta["val"])
            leaves.append(Slot(len(inputs)))
            inputs.append(made)
            table.tensors[node] = (made,)
    return inputs, params, leaves


def _param(program: ExportedProgram, spec: InputSpec, keys: tuple[str, ...]) -> Param:
    """Return the description of a weight, with its values if they are known and in no state dict."""
    kind = "temporary" if spec.kind is InputKind.BUFFER and not spec.persistent else _KINDS[spec.kind]
    if kind in ("parameter", "buffer"):
        return Param(keys, kind)
    value: Any = program.constants.get(keys[0])
    is_known = isinstance(value, torch.Tensor) and (not is_blank(value) or value.numel() == 0)
    return Param(keys, kind, from_tensor(value) if is_known else None)


def _ties(program: ExportedProgram) -> dict[str, tuple[str, ...]]:
    """Return all keys of the same tensor for each state-dict key, in state-dict order."""
    groups: dict[Any, list[str]] = {}
    for key, tensor in program.state_dict.items():
        groups.setdefault(_place(tensor), []).append(key)
    return {key: tuple(group) for group in groups.values() if len(group) > 1 for key in group}


def _place(tensor: torch.Tensor) -> Hashable:
    """Return storage and layout as a key: tied weights of a loaded program are equal only in these."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return memory_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _input_tree(program: ExportedProgram, leaves: list[Tree]) -> Branch:
    tree = to_structure(program.call_spec.in_spec, iter(leaves))
    assert isinstance(tree, Branch)  # always a pair of arguments and keywords
    return tree


def _read_outputs(
    program: ExportedProgram, table: Calls
) -> tuple[list[TensorMeta], list[tuple[TensorMeta, TensorMeta]], list[Tree]]:
    """Return user outputs, mutated tensors with their new values, and the leaves of the output structure."""
    returned: Any = next(node for node in program.graph.nodes if node.op == "output").args[0]
    by_name = {node.name: node for node in program.graph.nodes}
    targets = {str(spec.target): by_name[spec.arg.name] for spec in program.graph_signature.input_specs if spec.target}
    outputs: list[TensorMeta] = []
    mutations: list[tuple[TensorMeta, TensorMeta]] = []
    leaves: list[Tree] = []
    for value, spec in zip(returned, program.graph_signature.output_specs, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            leaves.append(returned_leaf(table, value, outputs))
        elif spec.kind in _MUTATIONS:
            target = targets.get(str(spec.target)) or by_name[str(spec.target)]
            mutations.append((table.alias(target), table.alias(value)))
        elif spec.kind is not OutputKind.TOKEN:
            raise ConversionError(f"output {spec.arg} is a {spec.kind.name}, which the IR cannot hold")
    return outputs, mutations, leaves
