"""The graph argument of a public function: an IR, or a model where the function takes one; else one clear error.

A model is captured here, so that `cost(model, example_inputs=...)` and the others accept the same things.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Union

from torch_ir.errors import ArgumentError
from torch_ir.ir.graph.graph import IR


class Model(Protocol):
    """A `torch.nn.Module`, without the import of torch."""

    training: bool

    def state_dict(self) -> dict[str, Any]: ...


ExampleInputs = Union[Sequence[Any], Mapping[str, Any]]


def require_graph(given: object, function: str) -> None:
    """Raise ArgumentError with the call to make first, if the argument of a function is not a graph."""
    if not isinstance(given, IR):
        raise ArgumentError(f"{function} takes an IR, not {_remedy(given)}")


def graph_of(given: IR | Model, example_inputs: ExampleInputs | None, function: str) -> IR:
    """Return the graph of an argument; a model is captured with its example inputs, by name if they are a mapping."""
    if isinstance(given, IR):
        if example_inputs is not None:
            raise ArgumentError(f"{function}: example_inputs are for a model, but {given!r} is already a graph")
        return given
    if not is_model(given):
        raise ArgumentError(f"{function} takes an IR or a model, not {_remedy(given)}")
    if example_inputs is None:
        name = type(given).__name__
        raise ArgumentError(
            f"{function} captures the model {name} with example inputs: add example_inputs=(tensor, ...)"
        )
    from torch_ir.capture import extract_ir

    model: Any = given
    if isinstance(example_inputs, Mapping):
        return extract_ir(model, (), kwargs=example_inputs, strict=False)
    args: Any = example_inputs  # extract_ir refuses what is neither a tuple nor a list
    return extract_ir(model, args, strict=False)


def is_model(given: object) -> bool:
    """Whether an object is a `torch.nn.Module`; torch is not imported."""
    return any(
        (kind.__module__, kind.__name__) == ("torch.nn.modules.module", "Module") for kind in type(given).__mro__
    )


def _remedy(given: object) -> str:
    """Return the description of an argument that is not a graph, and how to get a graph from it."""
    kind = type(given).__name__
    if is_model(given):
        return f"the model {kind}; capture it first: ir = torch_ir.extract_ir(model, example_inputs, strict=False)"
    if isinstance(given, type):
        return f"the class {given.__name__}; make an object of it first"
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        return f"the path {path!r:.80}; load it first: ir = torch_ir.load_ir({path!r:.80})"
    if isinstance(given, Mapping):
        return f"a {kind}; make a graph of it first: ir = torch_ir.IR.from_dict(...)"
    if isinstance(given, tuple) and given and isinstance(given[0], IR):
        return "a tuple; optimize returns a graph and a report: ir, report = torch_ir.optimize(...)"
    if kind == "ExportedProgram":
        return "an ExportedProgram; convert it first: ir = torch_ir.convert_exported_program(program)"
    return "None" if given is None else f"a value of type {kind}"
