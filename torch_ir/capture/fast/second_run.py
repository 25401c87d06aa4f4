"""A second run of a model on its recorder, on the Python state that the first run left: does it compute the same?

Contents are numbered: two have one number if the same operators computed them from the same inputs, weights, constants
and draws. A number belongs to a memory, so that a write changes it for every view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torch_ir.capture.fast.assembly import Assembly
from torch_ir.capture.fast.assigned_weights import Place, write_assigned
from torch_ir.capture.fast.call_rule import Rule
from torch_ir.capture.fast.call_tape import Step, Tape
from torch_ir.capture.fast.shape_tensors import Ghost
from torch_ir.capture.fast.symbolic_size import SYMBOLIC, Size
from torch_ir.capture.state.frozen_state import frozen_by
from torch_ir.capture.state.python_state import PythonState
from torch_ir.capture.state.side_effects import Frozen
from torch_ir.ops.torch_internals import pytree

if TYPE_CHECKING:
    from torch_ir.capture.fast.data_numbers import DataNumbers

_MOST_ELEMENTS = 4096  # of a constant that is identified by its values


class Runs:
    """The runs of a model on one tape: the first, of which the graph is made, and another to compare with it."""

    def __init__(self, assembly: Assembly, surroundings: Callable[[], AbstractContextManager[Any]]) -> None:
        self.returned: Any = None  # by the first run
        self.places: Sequence[Place] = ()  # of weights, with the ghosts that stand in for them
        self._assembly, self._surroundings = assembly, surroundings

    def frozen(self, model: nn.Module, state: PythonState, names: Iterable[str]) -> Frozen:
        """Run the model once more, on the state that the first run left; return the state on which that depends."""
        recorder, tape = self._assembly.recorder, self._assembly.tape
        weights, inputs = self._assembly.values_given()
        contents = Contents(tape, recorder.queries.numbers)

        def digest(start: int, inputs: Sequence[int], returned: Any) -> Any:
            contents.begin(weights, inputs)
            for step in tape.steps[start:]:
                contents.follow(step)
            leaves, structure = pytree.tree_flatten(returned)
            shown = [contents.of(recorder.known(leaf)) if isinstance(leaf, Tensor) else _shown(leaf) for leaf in leaves]
            return str(structure), shown, [contents.key(value) for value in (*weights, *inputs)]

        def run() -> Any:
            start = len(tape.steps)
            inputs, given = self._assembly.given_again()
            recorder.queries.begin_again()
            with _replaced(self.places), self._surroundings():
                returned = write_assigned(recorder, self.places, recorder.run(*given))
            if tape.run.refusal is not None:
                raise tape.run.refusal
            return digest(start, inputs, returned)

        return frozen_by(model, run, digest(0, inputs, self.returned), state, names)


@contextmanager
def _replaced(places: Sequence[Place]) -> Iterator[None]:
    """Put the ghosts of weights in their places again."""
    before = [table[name] for table, name, _ in places]
    try:
        for table, name, value in places:
            table[name] = value
        yield
    finally:
        for (table, name, _), old in zip(places, before, strict=True):
            table[name] = old


def _shown(value: Any) -> tuple[str, str]:
    return type(value).__name__, "?" if type(value) in SYMBOLIC else str(value)


class Contents:
    """The numbers of the contents of a tape's memories."""

    def __init__(self, tape: Tape, symbolic: DataNumbers | None = None) -> None:
        self._tape, self._symbolic = tape, symbolic
        # what a run writes to is something else in the next one, as inputs are
        self._written = {tape.memory[step.inputs[0]] for step in tape.steps if step.rule.new_value is not None}
        self._numbers: dict[Any, int] = {}
        self._known: dict[int, tuple[int, bool]] = {}  # memory -> number, and whether inputs or draws decide it
        self._draws = 0

    def begin(self, weights: Sequence[int], inputs: Sequence[int]) -> None:
        """Start another run: what the last one computed from inputs and draws is something else in it."""
        self._draws = 0
        for memory, (number, varies) in self._known.items():
            if varies:
                self._known[memory] = self._number(("of an earlier run", number)), True
        for given in (weights, inputs):
            for place, value in enumerate(given):
                memory, is_input = self._tape.memory[value], given is inputs
                self._known[memory] = self._number(("given", place, is_input)), is_input or memory in self._written

    def follow(self, step: Step) -> None:
        """Number what a call makes and writes."""
        rule, inputs, first = step[:3]
        self._draws += rule.is_random
        call = self._identity(rule), *map(self.key, inputs), self._draws if rule.is_random else 0
        varies = rule.is_random or any(self._content(value)[1] for value in inputs)
        memory = self._tape.memory
        if rule.new_value is not None:
            self._known[memory[inputs[0]]] = self._number(call), varies
        for value in range(first, first + len(rule.outputs) - rule.outputs.count(None)):
            if memory[value] == value:
                self._known[value] = self._number((call, value - first)), varies

    def _identity(self, rule: Rule) -> Any:
        """Return a key for all of a call but its tensors."""
        if not rule.sizes or self._symbolic is None:
            return rule
        attrs = {name: self._shown(value) for name, value in rule.attrs.items()}
        return rule.func, rule.args, rule.order, str(attrs)

    def _shown(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._shown(item) for item in value]
        return self._symbolic.text(value, self.key) if type(value) is Size and self._symbolic is not None else value

    def of(self, tensor: Any) -> Any:
        """Return a key for a tensor of the tape; any other is identified by its address."""
        return self.key(tensor.value) if type(tensor) is Ghost else id(tensor)

    def key(self, value: int) -> Any:
        return self._content(value)[0], self._tape.forms[value]

    def _content(self, value: int) -> tuple[int, bool]:
        memory = self._tape.memory[value]
        if memory not in self._known:
            constant, _ = self._tape.constants[memory]
            is_small = constant.numel() <= _MOST_ELEMENTS and constant.layout is torch.strided
            name = (str(constant.tolist()), constant.dtype) if is_small else memory
            self._known[memory] = self._number(("constant", name)), False
        return self._known[memory]

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))
