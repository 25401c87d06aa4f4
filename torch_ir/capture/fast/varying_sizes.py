"""Symbolic sizes: integers with a value and an expression, whose queries to torch are memoised.

A model sees torch's symbolic integers, with a node class defined here. Each query (`a + b`, `a == b`, the guard of a
branch, the contiguity of a tensor) goes to torch's `ShapeEnv` once, and its answer is cached for the process. An answer
may depend on what torch already knows about the sizes, and a query may add to that. So answers are cached per `State`;
a query from which torch learns something leads to the next state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode

from torch_ir.capture.fast.shape_tensors import Form, NotCoveredError, StaleAnswersError, form_of, interned_form
from torch_ir.capture.fast.size_environment import Environment, Request, request_key
from torch_ir.capture.fast.symbolic_size import KEPT, SYMBOLIC, WRAPPED, Size, live_size
from torch_ir.ops.torch_internals import DisableTorchFunction, disable_current_modes

Key = tuple[Any, ...]
Answer = tuple[Any, "State"]  # what torch answers, and what is known afterwards
_MOST_SPACES = 16  # kinds of inputs whose answers are kept
_MOST_ANSWERS = 1 << 16  # in one of them


class State:
    """Torch's facts about the sizes at some point of a run, with the answers cached there."""

    def __init__(self, facts: Any, before: State | None = None, question: Callable[[Environment], Any] | None = None):
        self.facts = facts  # of torch's environment, to tell whether it was brought to this state again
        self.before = before
        self.question = question  # that led here
        self.answers: dict[Key, Answer] = {}
        self.current: dict[Any, Any] = {}  # sizes and forms as they are written with what is known here
        self.path: frozenset[int] = (before.path if before is not None else frozenset()) | {id(self)}
        self.result: Any = None  # of a run that ends here

    @property
    def replaced(self) -> frozenset[Any]:
        """Return the symbols that torch replaces by other expressions."""
        return self.facts.replaced  # type: ignore[no-any-return]


class Space:
    """The cache for one kind of inputs: its sizes, its states, and torch's environment in one of these."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._sizes: dict[Any, Size] = {}
        self._environment: Environment | None = Environment(request, self)
        self.first = self._at = State(self._environment.facts())
        self.lasting: dict[Key, list[tuple[Any, State]]] = {}
        self.asked = 0
        self.inputs = [None if shape is None else self._input(*shape) for shape in self._environment.inputs]

    def _input(self, shape: Sequence[Any], stride: Sequence[Any], tensor: torch.Tensor) -> Form:
        return self.form(shape, stride, 0, tensor.dtype, tensor.device)

    def environment(self, state: State) -> Environment:
        """Return torch's environment in a state; if it is in another one, rebuild it by repeating the queries."""
        if self._environment is None or self._at is not state:
            steps = []
            while state.before is not None:
                steps.append(state)
                state = state.before
            self.close()
            self._environment, self._at = Environment(self.request, self), self.first
            for step in reversed(steps):
                if not self._is_reached(step):
                    self.close()
                    _forget(self)
                    raise StaleAnswersError("torch answers the same question about sizes in another way")
                self._at = step
        return self._environment

    def _is_reached(self, step: State) -> bool:
        """Repeat the query that led to a state; return whether torch then knows the same facts."""
        assert step.question is not None  # only the first state has none
        assert self._environment is not None
        try:
            with disable_current_modes(), DisableTorchFunction():  # a number may be queried during recording
                step.question(self._environment)
        except NotCoveredError:
            return False
        return self._environment.facts() == step.facts  # type: ignore[no-any-return]

    def ask(self, state: State, key: Key, question: Callable[[Environment], Any], is_kept: bool = True) -> Answer:
        """Return the answer to a query in a state, from the cache or from torch."""
        for known, asked_at in self.lasting.get(key, ()):
            if id(asked_at) in state.path:
                found = state.answers[key] = (known, state)
                return found
        environment = self.environment(state)
        environment.has_looked = False
        try:
            answer = question(environment)
        except BaseException:
            self.close()  # torch may have learned something
            raise
        facts = environment.facts()
        after = state if facts == state.facts else State(facts, state, question)
        self._at = after
        if is_kept:
            self.asked += 1
            state.answers[key] = (answer, after)
            if not environment.has_looked:
                self.lasting.setdefault(key, []).append((answer, after))
        return answer, after

    def close(self) -> None:
        """Drop torch's environment, which holds fake tensors."""
        if self._environment is not None:
            self._environment.close()
        self._environment = None

    def form_of(self, tensor: torch.Tensor) -> Form:
        """Return the form of a fake tensor, which may have symbolic sizes."""
        shape, stride, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        if all(type(size) is int for size in (*shape, *stride, offset)) or tensor.layout is not torch.strided:
            return form_of(tensor)
        if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
            raise NotCoveredError("a tensor with a pending operation")
        return self.form(shape, stride, offset, tensor.dtype, tensor.device)

    def form(
        self, shape: Sequence[Any], stride: Sequence[Any], offset: Any, dtype: torch.dtype, device: torch.device
    ) -> Form:
        """Return a form with these sizes, given as torch's numbers or as sizes; known values become plain numbers."""
        return interned_form(
            (_known(self.plain(shape)), _known(self.plain(stride)), dtype, device, *_known((self.plain(offset),)))
        )

    def result(self, state: State) -> Any:
        """Return the environment as torch finishes it at the end of a run, or the violation that it reports."""
        if state.result is None:
            try:
                state.result = self.environment(state).finished()
            finally:
                self.close()  # it takes no more questions
        return state.result

    def size(self, node: Any) -> Any:
        """Return the size for a node of torch."""
        expr = node.expr
        key = (expr, node.pytype, node.hint, node.constant, type(node.constant), node._optimized_summation)
        found = self._sizes.get(key)
        if found is None:
            if node.hint is None:
                raise NotCoveredError("a size that depends on the data")
            found = Size(expr, node.pytype, node.hint, node.constant, node._optimized_summation)
            self._sizes[key] = found
        return found

    def plain(self, value: Any) -> Any:
        """Convert torch's numbers and nodes to sizes, also in nested sequences."""
        if isinstance(value, SYMBOLIC):
            return self.size(value.node)
        if isinstance(value, SymNode):
            return self.size(value)
        if isinstance(value, (list, tuple)):
            return tuple([self.plain(item) for item in value])
        return value


def _known(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([int(size.expr) if type(size) is Size and not size.symbols else size for size in sizes])


_spaces: dict[Key, Space] = {}


def _space(request: Request) -> Space:
    key = request_key(request)
    found = _spaces.pop(key, None)
    if found is None or found.asked > _MOST_ANSWERS:
        found = Space(request)
    _spaces[key] = found  # the latest last
    while len(_spaces) > _MOST_SPACES:
        del _spaces[next(iter(_spaces))]
    return found


def _forget(space: Space) -> None:
    for key in [key for key, known in _spaces.items() if known is space]:
        del _spaces[key]


class OpenSizes:
    """The sizes of one run."""

    def __init__(self, request: Request) -> None:
        self.space = _space(request)
        self.state = self.space.first
        self.is_over = False
        self._numbers: dict[Size, Any] = {}

    def close(self) -> None:
        """End the run: its symbolic numbers become invalid."""
        self.is_over = True
        self._numbers.clear()
        self.space.close()

    def result(self) -> Any:
        """Return the finished environment after the run."""
        return self.space.result(self.state)

    @property
    def inputs(self) -> list[Form | None]:
        """Return the forms of the tensors among the leaves of the inputs; None for other leaves."""
        return self.space.inputs

    # -- what the model sees ------------------------------------------------------------------------------------------

    def number(self, size: Any) -> Any:
        """Return a size as the model sees it; a plain number is returned unchanged."""
        if type(size) is not Size:
            return size
        found = self._numbers.get(size)
        if found is None:
            found = self._numbers[size] = WRAPPED[size.kind](SizeNode(self, size))
        return found

    def numbers(self, sizes: Sequence[Any]) -> list[Any]:
        return [self.number(size) if type(size) is Size else size for size in sizes]

    def asked(self, name: str, node: SizeNode, args: Sequence[Any]) -> Any:
        """Answer a query that calls a method of a node."""
        if self.is_over:
            raise NotCoveredError(KEPT)
        state = self.state
        key = (name, self.current(node.size), *[self._argument(value) for value in args])
        found = state.answers.get(key) or self.space.ask(state, key, _Call(key))
        answer, self.state = found
        if type(answer) is Size:
            return self.number(answer).node
        return answer

    def _argument(self, value: Any) -> Any:
        kind = type(value)
        if kind is SizeNode:
            return self.current(value.size)
        if kind in (list, tuple):
            return tuple([self._argument(item) for item in value])
        if kind is float:
            return _Float(value)
        if kind in (int, str, bool, type(None)):
            return value
        raise NotCoveredError(f"a size meets a {kind.__name__}")

    # -- what is known -------------------------------------------------------------------------------------------------

    def current(self, size: Size) -> Size:
        """Return a size, rewritten with what torch knows now."""
        state = self.state
        if not state.replaced or state.replaced.isdisjoint(size.symbols):
            return size
        found = state.current.get(size)
        if found is None:
            found = self.space.plain(self.space.environment(state).node(size))
            state.current[size] = found
        return found  # type: ignore[no-any-return]

    def current_form(self, form: Form) -> Form:
        """Return a form with its sizes rewritten with what torch knows now."""
        state = self.state
        if not state.replaced:
            return form
        found = state.current.get(form)
        if found is None:
            shape, stride, offset = map(self._current_key, (form.shape, form.stride, form.offset))
            found = state.current[form] = self.space.form(shape, stride, offset, form.dtype, form.device)
        return found

    def current_of(self, number: Any) -> Size:
        """Return the size of a number of the model, rewritten with what torch knows now."""
        return self.current(live_size(number))

    def rule(self, key: Key, question: Callable[[], Callable[[Environment], Any]], is_kept: bool) -> Any:
        """Return the rule of a call with symbolic sizes; without `is_kept`, it is not cached."""
        state = self.state
        if state.replaced:
            key = self._current_key(key)
        found = state.answers.get(key) or self.space.ask(state, key, question(), is_kept)
        answer, self.state = found
        return answer

    def _current_key(self, part: Any) -> Any:
        kind = type(part)
        if kind is tuple:
            return tuple([self._current_key(item) for item in part])
        if kind is Form:
            return self.current_form(part) if part.is_open else part
        return self.current(part) if kind is Size else part


class _Float:
    """A float in a key, compared by its text: 0.0 equals -0.0 and 0."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Float) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


class _Call:
    """A query that calls a method of a node."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def __call__(self, environment: Environment) -> Any:
        name, size, *args = self.key
        answer = getattr(environment.node(size), name)(*[_torchs(environment, value) for value in args])
        if answer is NotImplemented:
            raise NotCoveredError(f"{name} of a size")
        return environment.space.plain(answer)


def _torchs(environment: Environment, value: Any) -> Any:
    """Convert an argument of a method to torch's types."""
    if type(value) is Size:
        return environment.node(value)
    if type(value) is tuple:
        return [_torchs(environment, item) for item in value]
    return value.value if type(value) is _Float else value


class SizeNode(SymNode):
    """The node of a symbolic number that a model sees; it forwards each query to torch's own node once."""

    def __init__(self, sizes: OpenSizes, size: Size) -> None:
        self.sizes = sizes
        self.size = size
        self.pytype = size.kind
        self.constant = size.constant
        self.fx_node = None
        self._optimized_summation = size.is_sum

    @property
    def expr(self) -> Any:
        return self.sizes.current(self.size).expr

    @property
    def hint(self) -> Any:
        return self.size.hint

    @property
    def shape_env(self) -> Any:  # type: ignore[override]  # a plain attribute of torch's
        raise NotCoveredError("the model asks for torch's own bookkeeping of sizes")

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def maybe_as_int(self) -> int | None:
        expr = self.expr
        return int(expr) if expr.is_number else None

    def clone(self) -> SizeNode:
        return self


def _asking(name: str) -> Callable[..., Any]:
    def ask(node: SizeNode, *args: Any) -> Any:
        return node.sizes.asked(name, node, args)

    ask.__code__ = ask.__code__.replace(co_filename=torch.__file__)  # torch looks for the user's frame above it
    return ask


for _name, _member in list(vars(SymNode).items()):
    _is_method = callable(_member) and (not _name.startswith("__") or _name in ("__str__", "__repr__"))
    if _is_method and _name not in vars(SizeNode):
        setattr(SizeNode, _name, _asking(_name))
