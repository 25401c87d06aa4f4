"""Match inputs to the arguments of a model's `forward`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.input_specs import InputSpec
from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from torch import nn


def match_inputs(model: nn.Module, specs: Sequence[InputSpec]) -> inspect.BoundArguments:
    """Bind specs to the arguments of `forward`: named ones by name, the others in order."""
    signature = inspect.signature(model.forward)
    call = f"{type(model).__name__}.forward"
    words = [name for name, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    named = _nested([spec for spec in specs if spec.name])
    for name in named:
        if name not in words and not takes_any:
            raise CommandError(f"{call}({', '.join(words)}) has no argument {name!r}{did_you_mean(name, words)}")
    try:
        bound = signature.bind(*(spec for spec in specs if not spec.name), **named)
    except TypeError as error:
        if not specs:
            raise CommandError(_missing_inputs(call, signature)) from None
        raise CommandError(f"the --input options do not match {call}({', '.join(words)}): {error}") from None
    for name, spec in bound.arguments.items():
        if isinstance(spec, InputSpec) and spec.number is not None and _takes_numbers(signature.parameters[name]):
            bound.arguments[name] = replace(spec, shape=(), value=spec.number)
    return bound


def _nested(specs: Sequence[InputSpec]) -> dict[str, Any]:
    """Return arguments by name: `options.keys` and `options.count` make a dict, `pair.0` and `pair.1` a list."""
    tree: dict[str, Any] = {}
    for spec in specs:
        *outer, last = (spec.name or "").split(".")
        place = tree
        for word in outer:
            place = place.setdefault(word, {})
            if isinstance(place, InputSpec):
                break
        if isinstance(place, InputSpec) or last in place:
            raise CommandError(f"the input {spec.name!r} is given twice, once inside another")
        place[last] = spec
    return {name: _as_lists(value) for name, value in tree.items()}


def _as_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    items = {key: _as_lists(item) for key, item in value.items()}
    if items.keys() == {str(index) for index in range(len(items))}:
        return [items[str(index)] for index in range(len(items))]
    return items


def _takes_numbers(parameter: inspect.Parameter) -> bool:
    """Whether an argument takes a number rather than a tensor, by its default or annotation."""
    words = set(re.findall(r"\w+", inspect.formatannotation(parameter.annotation)))
    return isinstance(parameter.default, (int, float)) or bool(words & {"int", "float"} and "Tensor" not in words)


def _missing_inputs(call: str, signature: inspect.Signature) -> str:
    """Return the error for a model without inputs, with an example."""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    needed = [p.name for p in bare if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    shown = " ".join(f'--input "{name}=f32[1,8]"' for name in needed)
    shape = signature.replace(parameters=bare, return_annotation=signature.empty)
    return f"{call}{shape} needs inputs; give them, as in {shown}"
