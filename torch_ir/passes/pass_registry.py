"""Passes by name. A pass is a function that changes a graph and returns how many changes it made.

    @named_pass("dead-code")
    def dead_code(ir: IR) -> int: ...

Its keyword parameters are its options, here and on the command line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.errors import CommandError, RegistryError, did_you_mean
from torch_ir.ir import IR
from torch_ir.ir.checks.work import bounded
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.rewrite import Rule, rewrite

Function = Callable[..., int]
_passes: dict[str, Pass] = {}


@dataclass(frozen=True)
class Pass:
    """A pass with its name and the options that it takes, each with its default."""

    name: str
    function: Function
    options: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    fuses: bool = False  # runs after the other passes, which cannot see inside fused calls
    may_raise: tuple[str, ...] = ()  # the fields of a `Measure` that it may increase; never any other

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or self.name).partition("\n")[0]

    def __call__(self, ir: IR, **options: Any) -> int:
        return self.function(ir, **options)

    def with_options(self, **options: Any) -> Pass:
        """Return the pass with other defaults: `find_pass("fold-constants").with_options(limit=1024)`."""
        for option in options:
            if option not in self.options:
                known = ", ".join(self.options) or "none"
                raise CommandError(
                    f"pass {self.name!r} has no option {option!r}; options: {known}{did_you_mean(option, self.options)}"
                )
        return replace(self, function=partial(self.function, **options), options={**self.options, **options})


def named_pass(name: str, *, fuses: bool = False, may_raise: Iterable[str] = ()) -> Callable[[Function], Pass]:
    """Register the decorated function as the pass of that name; passes that fuse nodes run after the others.

    `may_raise` lists the measures that may increase: nodes, flops, bytes, peak, params.
    """

    def register(function: Function) -> Pass:
        return _registered(Pass(name, function, _options(name, function), fuses=fuses, may_raise=tuple(may_raise)))

    return register


def rule_pass(name: str, summary: str, rules: Iterable[Rule], *, may_raise: Iterable[str] = ()) -> Pass:
    """Register a pass that applies these rules."""
    kept = tuple(rules)

    def apply(ir: IR) -> int:
        return apply_once(ir, *kept)

    apply.__doc__ = summary
    return _registered(Pass(name, apply, {}, kept, may_raise=tuple(may_raise)))


def apply_once(ir: IR, *rules: Rule) -> int:
    """Apply rules to every node of a graph, and again to nodes affected by a change; return the number of changes."""
    return rewrite(ir, rules, Knowledge.of(ir))


@bounded
def apply_rules(ir: IR, *rules: Rule) -> int:
    """Apply rules to a graph, without its functions, until nothing changes; return the number of changes."""
    require_graph(ir, "apply_rules")
    count = 0
    while made := apply_once(ir, *rules):
        count += made
    return count


def find_pass(text: str) -> Pass:
    """Return the pass of that name, with options in the syntax of the command line: `fold-constants:limit=1024`."""
    name, *settings = text.split(":")
    if name not in _passes:
        known = ", ".join(sorted(_passes))
        raise CommandError(f"unknown pass {name!r}; expected one of {known}{did_you_mean(name, _passes)}")
    found = _passes[name]
    options = dict(setting.partition("=")[::2] for setting in settings)
    typed = {option: _typed(found, option, value) for option, value in options.items()}
    return found.with_options(**typed) if options else found


def _typed(found: Pass, option: str, text: str) -> Any:
    """Parse an option's text to the type of its default."""
    kind = type(found.options.get(option))
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind in (list, tuple):
        return [part.strip() for part in text.split(",")]
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        raise CommandError(f"option {option!r} of pass {found.name!r} takes a number, not {text!r:.40}") from None


def list_passes() -> list[Pass]:
    """Return all passes, sorted by name."""
    return [_passes[name] for name in sorted(_passes)]


def _options(name: str, function: Function) -> dict[str, Any]:
    found = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.default is parameter.empty:
            raise RegistryError(f"option {parameter.name!r} of pass {name!r} needs a default")
        found[parameter.name] = parameter.default
    return found


def _registered(made: Pass) -> Pass:
    held = _passes.get(made.name)
    if held is not None and _home(held) != _home(made):
        raise RegistryError(f"pass {made.name!r} is already registered by {_home(held)}")
    _passes[made.name] = made
    return made


def _home(made: Pass) -> str:
    """Return where a pass is defined, so that reloading a module may register its passes again."""
    place = made.rules[0].change if made.rules else made.function
    return f"{place.__module__}.{place.__qualname__}"
