"""Handlers and their keys: an operator, a module class, a torch function, or a pattern."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from torch_ir.errors import RegistryError, did_you_mean
from torch_ir.ir import OpNode
from torch_ir.ir.regroup.granularity import public_name
from torch_ir.rewrite import Pattern

Key = str | Pattern
BODY = "body"

_TORCH_FUNCTION = re.compile(r"torch\.(?:\w+\.)*([a-z_]\w*)")
_CLOSE = 0.8


@dataclass(frozen=True)
class Declined:
    """Returned by a handler that declines a node; the reason goes into the work list."""

    why: str


@dataclass(frozen=True)
class Rule:
    """A handler, its key, and the names that its signature requests beside the node; None means all."""

    key: Key
    handler: Callable[..., Any]
    wanted: tuple[str, ...] | None

    @property
    def name(self) -> str:
        """The handler's name as an identifier; a lambda is `lambda`."""
        return identifier(str(getattr(self.handler, "__name__", type(self.handler).__name__)))

    def __call__(self, node: OpNode, known: Mapping[str, Any]) -> Any:
        names = known if self.wanted is None else [name for name in self.wanted if name in known]
        return self.handler(node, **{name: known[name] for name in names})


def identifier(text: str) -> str:
    """Return a text reduced to letters, digits and underscores, or `unnamed`."""
    return re.sub(r"\W+", "_", text).strip("_") or "unnamed"


def same_operator(name: str) -> str | None:
    """Return the operator with the name of a torch function, without overload: `aten.flatten` for `torch.flatten`."""
    function = _TORCH_FUNCTION.fullmatch(name)
    return f"aten.{function[1].strip('_')}" if function else None


def key_of(thing: Any) -> Key:
    """Return the key of an object as a pattern or name; torch is used only if it is already imported."""
    if isinstance(thing, Pattern):
        return thing
    if isinstance(thing, str):
        return public_name(thing)
    if isinstance(thing, type):
        return public_name(f"{thing.__module__}.{thing.__qualname__}")
    if callable(thing):
        return _function_name(thing)
    raise RegistryError(f"{thing!r:.80} is not an operator name, module class, torch function or pattern")


def _function_name(function: Callable[..., Any]) -> str:
    """Return torch's name of a function, `torch.nn.functional.gelu`; else its Python path."""
    if "torch" in sys.modules:
        from torch.overrides import resolve_name

        return resolve_name(function) or place_of(function)
    return place_of(function)


def place_of(function: Callable[..., Any]) -> str:
    """Return `module.function`, or the repr of a callable without a name."""
    names = [getattr(function, name, None) for name in ("__module__", "__qualname__")]
    return ".".join(map(str, names)) if all(names) else repr(function)


def requested_names(handler: Callable[..., Any], key: Key) -> tuple[str, ...] | None:
    """Return the parameters of a handler after the first; each must be available for that key."""
    try:
        first, *others = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature, or a function without arguments
        return ()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in (first, *others)):
        return None
    if isinstance(key, str) and key.startswith("higher_order."):  # the names of their bodies differ
        return tuple(parameter.name for parameter in others)
    known = key.captures if isinstance(key, Pattern) else {BODY}
    for parameter in others:
        is_needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if is_needed and parameter.name not in known:
            name = getattr(handler, "__name__", repr(handler))
            hint = did_you_mean(parameter.name, known)
            raise RegistryError(f"{name} requests {parameter.name!r}, which {str(key)!r} does not provide{hint}")
    return tuple(parameter.name for parameter in others)


def is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two handlers are the same function, possibly reloaded; lambdas have no name to compare."""
    return one is other or (place_of(one) == place_of(other) and "<lambda>" not in place_of(one))


def check_key(key: Key, target: str) -> None:
    """Raise RegistryError for an operator, argument, class or function that torch lacks, if torch is loaded."""
    if "torch" not in sys.modules:
        return
    from torch_ir.ops import objection  # imports torch

    if isinstance(key, Pattern):
        key.check_names(f"target {target!r}")
    elif key.startswith("torch."):
        _check_path(key, target)
    elif problem := objection([key], ()):
        raise RegistryError(f"target {target!r}: {problem}")


def check_unused(keys: Iterable[Key], used: Iterable[str], missing: Iterable[str], target: str) -> None:
    """Check unused names that resemble operators without a handler; loads torch for that."""
    bases = {op_type.rpartition(".")[0] for op_type in used}
    lacking = [name for op_type in missing for name in (op_type, op_type.rpartition(".")[0])]
    unused = [key for key in keys if isinstance(key, str) and key not in bases and key not in used]
    if not any(get_close_matches(key, lacking, n=1, cutoff=_CLOSE) for key in unused):
        return
    try:
        import torch  # noqa: F401
    except ImportError:
        return
    for key in unused:
        check_key(key, target)


def _check_path(name: str, target: str) -> None:
    """Raise RegistryError if a name such as `torch.nn.Linear` does not exist, as far as torch is imported."""
    holder: Any = sys.modules["torch"]
    for part in name.split(".")[1:]:
        if not hasattr(holder, part):
            if not isinstance(holder, (ModuleType, type)):
                return
            raise RegistryError(f"target {target!r}: unknown name {name!r}{did_you_mean(part, dir(holder))}")
        holder = getattr(holder, part)
