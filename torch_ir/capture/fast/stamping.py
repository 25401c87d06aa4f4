"""Layers that are alike, recorded once: the rest are stamped onto the tape without being run.

A layer is stamped only after two like it were recorded and found equal, and the last one is recorded again. It must
read nothing but its arguments, its own weights and what both read, write to nothing, leave no tensor behind but what it
returns, and not look at the numbers in which it differs from the others, such as its index.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from torch_ir.capture.fast.alike_modules import IMMUTABLE, TABLES, Group, Layer, groups, told
from torch_ir.capture.fast.call_tape import Stamp, Step, Tape
from torch_ir.capture.fast.shape_tensors import Ghost, NotCoveredError
from torch_ir.capture.instrument import intercepted

_DETACH = torch.ops.aten.detach.default
Place = tuple[Any, ...]  # a value as a layer sees it: of an argument, of a weight, made inside, or from elsewhere


class UnlikeError(NotCoveredError):
    """Layers that were taken for alike are not; the model has to be recorded layer by layer."""


@dataclass(eq=False)
class Recording:
    """One layer as it was recorded: where on the tape, and what its values are to it."""

    path: str
    steps: Sequence[Step]
    first: int  # of the values that it makes
    known: dict[int, Place]  # arguments and weights, by the values that they were at first
    rows: Hashable = None  # what is equal for layers that do the same
    result: Any = None  # what it returns, with places where tensors are
    finals: dict[Place, Place] = field(default_factory=dict)  # what arguments and weights stand for afterwards

    def place(self, value: int) -> Place:
        if value >= self.first:
            return ("made", value - self.first)
        return self.known.get(value, ("elsewhere", value))

    @cached_property
    def makers(self) -> list[tuple[int, int, int | None]]:
        """What it makes, by number: the step, and which of the results of that step it is."""
        return [
            (step.first - self.first + number, at, element)
            for at, step in enumerate(self.steps)
            for number, element in enumerate(step.rule.elements)
        ]

    @cached_property
    def read(self) -> list[Place]:
        """What it reads and does not make."""
        places = dict.fromkeys(self.place(value) for step in self.steps for value in step.inputs)
        return [place for place in places if place[0] != "made"]

    @cached_property
    def made(self) -> list[Place]:
        """The values that it makes and others may read: results, and what its arguments stand for afterwards."""
        found = [place for place in (*_places(self.result), *self.finals.values()) if place[0] == "made"]
        return list(dict.fromkeys(found))


@dataclass(eq=False)
class _Progress:
    """What is known of a group: its first recording, whether a second one has proved equal, or that all must be run."""

    first: Recording | None = None
    signature: Hashable = None
    is_proved: bool = False
    is_unlike: bool = False


class Stamping:
    """Decides for every call of a module whether it is run, and stamps those that are not."""

    def __init__(self, model: nn.Module, tape: Tape) -> None:
        self.tape = tape
        self.born: list[weakref.ref[Ghost]] | None = None  # tensors made in the layer that is being recorded
        self._model = model
        self._progress: dict[Group, _Progress] = {}
        self._stamped: set[nn.Module] = set()
        self._called: set[nn.Module] = set()

    @cached_property
    def _layers(self) -> dict[nn.Module, tuple[Layer, Group]]:
        return groups(self._model)  # when its weights are ghosts, whose forms are at hand

    def call(self, module: nn.Module, path: str, run: Callable[[], Any], arguments: Any) -> Any:
        """What a call of a module gives, run or not."""
        if module in self._stamped:
            raise UnlikeError(f"{path!r} is called again")
        if self.born is not None or module not in self._layers or module in self._called:
            return run()
        layer, group = self._layers[module]
        self._called.add(module)
        progress = self._progress.setdefault(group, _Progress())
        given: list[Ghost] = []
        signature = _signature(arguments, given)
        if progress.is_unlike or signature is None:
            return run()
        ghosts: dict[Place, Ghost] = {("given", at): ghost for at, ghost in enumerate(given)}
        ghosts.update((place, table[name]) for place, table, name in layer.weights)
        signature = (signature, _pattern(ghosts))
        if progress.is_proved and progress.first is not None and module is not group.layers[-1]:
            is_stamped = signature == progress.signature
            return self._stamp(progress.first, layer, path, ghosts) if is_stamped else run()
        recording, result = self._recorded(layer, group, path, run, ghosts)
        self._judge(progress, recording, signature)
        return result

    def _judge(self, progress: _Progress, recording: Recording | None, signature: Hashable) -> None:
        """Compare a recording with the first of its group."""
        if progress.first is None and recording is not None:
            progress.first, progress.signature = recording, signature
        elif recording is not None and progress.first is not None and progress.signature == signature:
            is_equal = (recording.rows, recording.result, recording.finals) == (
                progress.first.rows, progress.first.result, progress.first.finals,
            )  # fmt: skip
            if is_equal:
                progress.is_proved = True
                return
        if progress.is_proved:
            raise UnlikeError(f"a layer like {progress.first.path!r} does something else" if progress.first else "")
        progress.is_unlike = recording is None or progress.first is not recording

    # -- running ------------------------------------------------------------------------------------------------------

    def _recorded(
        self, layer: Layer, group: Group, path: str, run: Callable[[], Any], ghosts: Mapping[Place, Ghost]
    ) -> tuple[Recording | None, Any]:
        """Run a layer; None in the place of the recording if it does what no stamp may stand for."""
        tape = self.tape
        known: dict[int, Place] = {}
        for place, ghost in ghosts.items():
            known.setdefault(ghost.value, place)
        at, first, constants, state = len(tape.steps), len(tape.forms), len(tape.constants), _state(layer)
        self.born = []
        try:
            with _hidden(layer, group.varying) as was_read:
                result = run()
        finally:
            born, self.born = self.born, None
        steps = [step for step in tape.steps[at:] if isinstance(step, Step)]  # a layer in a layer is run
        recording = Recording(path, steps, first, known)
        kept = {id(ghost) for ghost in (*_ghosts(result), *ghosts.values())}
        escaped = any(ghost is not None and id(ghost) not in kept for ghost in (ref() for ref in born))
        if was_read() or escaped or len(tape.constants) > constants or state != _state(layer) or not _is_plain(result):
            return None, result
        if any(step.rule.new_value is not None or step.rule.func is _DETACH for step in steps):
            return None, result
        recording.rows = tuple(_row(step, recording) for step in steps)
        recording.result = _replaced(result, lambda ghost: _At(recording.place(ghost.value)))
        changed = [(place, ghost) for place, ghost in ghosts.items() if ghost.value not in known]
        recording.finals = {place: recording.place(ghost.value) for place, ghost in changed}
        return recording, result

    # -- stamping -----------------------------------------------------------------------------------------------------

    def _stamp(self, first: Recording, layer: Layer, path: str, ghosts: Mapping[Place, Ghost]) -> Any:
        """Put a layer onto the tape as another call of one that was recorded."""
        tape = self.tape
        values = {place: ghost.value for place, ghost in ghosts.items()}
        for place in first.made:
            values[place] = len(tape.forms)
            tape.forms.append(tape.forms[first.first + place[1]])
            root = first.place(tape.memory[first.first + place[1]])
            shared = tape.memory[values[root]] if root in values and root != place else values[place]
            tape.memory.append(root[1] if root[0] == "elsewhere" else shared)
        tape.steps.append(Stamp(first, path, values))
        self._stamped.update(module for _, module in layer.inside)
        new = {place: tape.forms[values[place]].ghost(values[place], tape.run) for place in first.made}
        for place, final in first.finals.items():
            ghosts[place].value = values[final]
        return _filled(first.result, {**ghosts, **new})


def _row(step: Step, recording: Recording) -> Hashable:
    """A call as the layer sees it."""
    scope = step.scope
    module = (scope.module[len(recording.path) :], scope.call, scope.kind) if scope is not None else None
    return step.rule, tuple(map(recording.place, step.inputs)), module, step.line


def _pattern(ghosts: Mapping[Place, Ghost]) -> Hashable:
    """Which of the tensors that a layer is given, and has, are the same."""
    first: dict[int, Place] = {}
    return tuple(first.setdefault(ghost.value, place) for place, ghost in ghosts.items())


# -- values ----------------------------------------------------------------------------------------------------------


class _At(tuple[Any, ...]):
    """The place of a tensor, in a result."""


def _signature(arguments: Any, given: list[Ghost]) -> Hashable:
    """The arguments of a call but for what their tensors are; None if something in them may change in a run."""
    if type(arguments) is Ghost:
        given.append(arguments)
        return arguments.form
    if type(arguments) in (tuple, dict):
        items = arguments.items() if type(arguments) is dict else enumerate(arguments)
        found = tuple((key, _signature(item, given)) for key, item in items)
        return None if any(item is None for _, item in found) else found
    return (told(arguments),) if type(arguments) in IMMUTABLE else None


def _is_plain(result: Any) -> bool:
    if type(result) in (tuple, dict):
        return all(map(_is_plain, result.values() if type(result) is dict else result))
    return type(result) is Ghost or type(result) in IMMUTABLE


def _replaced(value: Any, change: Callable[[Ghost], Any]) -> Any:
    """A plain result with something else in the place of tensors."""
    if type(value) is Ghost:
        return change(value)
    if type(value) is dict:
        return {key: _replaced(item, change) for key, item in value.items()}
    return tuple(_replaced(item, change) for item in value) if type(value) is tuple else value


def _filled(value: Any, ghosts: Mapping[Place, Ghost]) -> Any:
    if type(value) is _At:
        return ghosts[tuple(value)]
    if type(value) is dict:
        return {key: _filled(item, ghosts) for key, item in value.items()}
    return tuple(_filled(item, ghosts) for item in value) if type(value) is tuple else value


def _places(value: Any) -> Iterator[Place]:
    if type(value) is _At:
        yield tuple(value)
    elif type(value) in (tuple, dict):
        for item in value.values() if type(value) is dict else value:
            yield from _places(item)


def _ghosts(value: Any) -> Iterator[Ghost]:
    if type(value) is Ghost:
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _ghosts(item)


# -- what a layer may look at and leave behind -----------------------------------------------------------------------


def _state(layer: Layer) -> Any:
    """What a run could change, in the modules of a layer and in Python's random numbers."""
    held = {
        (id(inner), name): list(map(id, value.values())) if name in TABLES else (id(value), told(value))
        for _, inner in layer.inside
        for name, value in vars(inner).items()
    }
    return held, random.getstate()


@contextmanager
def _hidden(layer: Layer, attributes: Sequence[tuple[str, str]]) -> Iterator[Callable[[], bool]]:
    """Take attributes away from a layer, and give them back when they are read; yields whether any was."""
    inner = dict(layer.inside)
    away = {(id(inner[path]), name): inner[path].__dict__.pop(name) for path, name in attributes}
    read: list[str] = []

    def get(original: Callable[[nn.Module, str], Any], owner: nn.Module, name: str) -> Any:
        if (id(owner), name) not in away:
            return original(owner, name)
        read.append(name)
        return away[id(owner), name]

    try:
        with intercepted(nn.Module, "__getattr__", get):  # called for what an object does not have
            yield lambda: bool(read)
    finally:
        for path, name in attributes:
            inner[path].__dict__.setdefault(name, away[id(inner[path]), name])
