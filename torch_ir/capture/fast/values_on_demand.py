"""Values on demand: the calls that lead to a value are run on real tensors when Python reads the value.

A content is the memory of a tensor after some number of writes to it. Given tensors and random results are never
written over: a write to one of these goes to a copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torch_ir.capture.fast.call_rule import filled_call
from torch_ir.capture.fast.call_tape import Step, Tape
from torch_ir.capture.fast.shape_tensors import Form, Ghost, NotCoveredError
from torch_ir.capture.instrument import outside_modes
from torch_ir.ops.effects import gives_its_input
from torch_ir.ops.torch_internals import DisableTorchFunction, FakeTensor, memory_key

if TYPE_CHECKING:
    from torch_ir.capture.fast.data_numbers import DataNumbers

Content = tuple[int, int]  # a memory, and the number of writes to it
_MOST_BYTES = 1 << 30  # of contents that are kept for later queries


class NoValuesError(Exception):
    """A value that Python reads depends on a tensor without values."""


class Given(NamedTuple):
    """A tensor from before the run: its name for messages, empty for a constant of the graph."""

    name: str
    tensor: Tensor


@contextmanager
def plainly() -> Iterator[None]:
    """Run operators as outside the capture: without its modes and dispatch keys, and without gradients."""
    with DisableTorchFunction(), outside_modes(), torch.no_grad():
        yield


class Values:
    """The contents of a tape's memories, as far as Python has read them; `given` returns a tensor from before."""

    def __init__(self, tape: Tape, given: Callable[[int], Given]) -> None:
        self._tape, self._given = tape, given
        self.numbers: DataNumbers | None = None  # that are read from values
        self._contents: dict[Content, torch.UntypedStorage] = {}
        self._kept: set[Content] = set()  # given tensors and random results
        self._varying: set[Content] = set()  # those that depend on inputs, weights or random numbers
        self._writes: dict[int, list[int]] = {}  # memory -> the steps that write to it
        self._makers: dict[int, int] = {}  # memory -> the step that allocated it
        self._draws: list[int] = []  # the steps that draw random numbers
        self._seen = 0  # steps
        self._drawn = 0  # random steps that have been run
        self._generator: Tensor | None = None

    def of(self, *ghosts: Ghost) -> list[Tensor]:
        """Return copies of the present values of tensors."""
        now = self._scanned()
        wanted = [self._content(ghost.value, now) for ghost in ghosts]
        with plainly():
            self._compute(wanted)
            found = [self._tensor(ghost.value, content) for ghost, content in zip(ghosts, wanted, strict=True)]
            copies = [tensor.clone() for tensor in found]
            self._forget(wanted)
        return copies

    def item(self, ghost: Ghost) -> Any:
        """Return the present value of a tensor with one element as a Python number."""
        found = self.of(ghost)[0]
        with plainly():
            return found.item()

    def are_constant(self, *ghosts: Ghost) -> bool:
        """Whether values depend neither on inputs and weights nor on random numbers."""
        now = self._scanned()
        steps, sources = self._slice([self._content(ghost.value, now) for ghost in ghosts])
        if not all(self._is_repeatable(self._tape.steps[at].rule) for at in steps):
            return False
        return not any(self._varies(source) for source in sources)

    def maker(self, value: int) -> Step | None:
        """Return the call that allocated the memory of a value; None for a given one."""
        self._scanned()
        at = self._makers.get(self._tape.memory[value])
        return None if at is None else self._tape.steps[at]

    # -- the tape -----------------------------------------------------------------------------------------------------

    def _scanned(self) -> int:
        """Index the steps since the last query; return their number."""
        steps, memory = self._tape.steps, self._tape.memory
        for at in range(self._seen, len(steps)):
            rule, inputs, first = steps[at][:3]
            if rule.new_value is not None:
                self._writes.setdefault(memory[inputs[0]], []).append(at)
            for value in range(first, first + len(rule.outputs) - rule.outputs.count(None)):
                if memory[value] == value:
                    self._makers[value] = at
            if rule.is_random and not gives_its_input(str(rule.func), rule.attrs):
                self._draws.append(at)
        self._seen = len(steps)
        return self._seen

    def _content(self, value: int, at: int) -> Content:
        """Return the content of a value before a step."""
        memory = self._tape.memory[value]
        return memory, bisect_left(self._writes.get(memory, ()), at)

    def _slice(self, wanted: Sequence[Content]) -> tuple[set[int], list[Content]]:
        """Return the steps that lead to contents, and the known and given contents from which they start."""
        steps: set[int] = set()
        sources: list[Content] = []
        waiting, seen = list(wanted), set(wanted)

        def want(at: int) -> None:
            steps.add(at)
            for value in self._read_by(self._tape.steps[at]):
                content = self._content(value, at)
                if content not in seen:
                    seen.add(content)
                    waiting.append(content)

        while waiting:
            memory, version = content = waiting.pop()
            at = self._writes[memory][version - 1] if version else self._makers.get(memory)
            if content in self._contents or at is None:
                sources.append(content)
            elif at not in steps:
                want(at)
                for earlier in self._draws[self._drawn :] if self._tape.steps[at].rule.is_random else ():
                    if earlier < at and earlier not in steps:  # the order of draws decides the numbers
                        want(earlier)
        return steps, sources

    def _read_by(self, step: Step) -> Sequence[int]:
        """Return the values that a call reads as tensors and as numbers."""
        sizes = step.rule.sizes
        return [*step.inputs, *self.numbers.values_of(sizes)] if sizes and self.numbers is not None else step.inputs

    def _varies(self, content: Content) -> bool:
        if content in self._contents:
            return content in self._varying
        return content[1] > 0 or content[0] not in self._tape.constants

    @staticmethod
    def _is_repeatable(rule: Any) -> bool:
        return rule.func.namespace in ("aten", "prims") and not rule.is_random

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _compute(self, wanted: Sequence[Content]) -> None:
        steps, sources = self._slice(wanted)
        for content in sources:
            if content in self._contents:
                continue
            if self._tape.forms[content[0]].is_open:
                raise NoValuesError("Python reads a value while sizes vary")
            name, tensor = self._given(content[0])
            if tensor.is_meta or isinstance(tensor, FakeTensor):
                raise NoValuesError(f"Python reads a value that depends on {name!r}, which has none")
            if self._varies(content):
                self._varying.add(content)
            self._contents[content] = self._laid_out(tensor.detach(), self._tape.forms[content[0]])
            self._kept.add(content)
        for at in sorted(steps):
            self._run(at)

    def _run(self, at: int) -> None:
        step = self._tape.steps[at]
        rule, inputs, first = step[:3]
        contents = {value: self._content(value, at) for value in self._read_by(step)}
        varies = not self._is_repeatable(rule) or not self._varying.isdisjoint(contents.values())
        numbers = {value: self._tensor(value, contents[value]).item() for value in contents if value not in inputs}
        if rule.new_value is not None:
            before = contents[inputs[0]]
            after = (before[0], before[1] + 1)
            is_kept = before in self._kept
            storage = self._contents[before] if is_kept else self._contents.pop(before)
            self._add(after, _copied(storage) if is_kept else storage, rule, varies)
            # an operand that shares memory with the target has moved with it
            contents = {value: after if content == before else content for value, content in contents.items()}
        tensors = [self._tensor(value, contents[value]) for value in inputs]
        args, kwargs = filled_call(rule, tensors, lambda size: self._number(size, numbers))
        result = self._drawing(at, rule.func, args, kwargs) if rule.is_random else rule.func(*args, **kwargs)
        if rule.new_value is None:
            self._keep(rule, first, result, tensors, varies)

    def _number(self, size: Any, numbers: Mapping[int, Any]) -> Any:
        """Return a symbolic number that a call reads, given the values of those that it is computed from."""
        return self.numbers.evaluated(size, numbers) if self.numbers is not None else size

    def _keep(self, rule: Any, first: int, result: Any, given: Sequence[Tensor], varies: bool) -> None:
        """Hold the results of a call that are no views of its inputs."""
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        value = first
        for output, tensor in zip(rule.outputs, results, strict=True):
            if output is None:
                continue
            if self._tape.memory[value] == value:
                if not isinstance(tensor, Tensor):  # of `item`
                    tensor = torch.tensor(tensor, dtype=output.form.dtype)
                if any(memory_key(tensor) == memory_key(other) for other in given):
                    tensor = tensor.clone()
                self._add((value, 0), self._laid_out(tensor, output.form), rule, varies)
            value += 1

    def _add(self, content: Content, storage: torch.UntypedStorage, rule: Any, varies: bool) -> None:
        self._contents[content] = storage
        if varies:
            self._varying.add(content)
        if not self._is_repeatable(rule):
            self._kept.add(content)

    @staticmethod
    def _laid_out(tensor: Tensor, form: Form) -> torch.UntypedStorage:
        """Return the memory of a tensor, laid out as its form says."""
        if form.is_open or tuple(tensor.shape) != form.shape or tensor.dtype != form.dtype:
            raise NotCoveredError(f"a value has the form {tensor.dtype}{list(tensor.shape)}, not {form.shape}")
        is_pending = tensor.is_conj() or tensor.is_neg()
        if tensor.stride() == form.stride and not is_pending:
            reach = 1 + sum((size - 1) * step for size, step in zip(form.shape, form.stride, strict=True))
            if tensor.storage_offset() != form.offset and tensor.numel():
                tensor = tensor.as_strided((reach,), (1,), tensor.storage_offset()).clone()
        else:
            laid = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=tensor.device)
            tensor = laid.copy_(tensor)
        return tensor.untyped_storage()

    def _tensor(self, value: int, content: Content) -> Tensor:
        form, storage = self._tape.forms[value], self._contents[content]
        made = torch.empty(0, dtype=form.dtype, device=storage.device)
        return made.set_(storage, form.offset, form.shape, form.stride)

    def _drawing(self, at: int, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a call that draws, with the random numbers that the model would have at this point."""
        outer = torch.get_rng_state()
        if self._generator is not None:
            torch.set_rng_state(self._generator)
        try:
            return func(*args, **kwargs)
        finally:
            self._generator = torch.get_rng_state()
            torch.set_rng_state(outer)
            self._drawn = bisect_left(self._draws, at + 1)

    def _forget(self, wanted: Sequence[Content]) -> None:
        """Drop contents that can be computed once more, the oldest first, while they take too many bytes."""
        size = sum(storage.nbytes() for content, storage in self._contents.items() if content not in self._kept)
        for content in list(self._contents):
            if size <= _MOST_BYTES:
                return
            if content not in self._kept and content not in wanted:
                size -= self._contents.pop(content).nbytes()


def _copied(storage: Any) -> torch.UntypedStorage:
    copy: torch.UntypedStorage = storage.clone()
    return copy
