"""What Python reads of values during a recording: the answers, and a guard for each that the data decides.

A number, such as that of `x.item()`, stays symbolic until Python needs it. A graph with symbolic numbers and sizes runs
on more inputs than one that is only for those at capture, so `may_specialise` is only for the recording that follows
where torch.export cannot capture the model either.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_ir.capture.data_branches.decision_paths import EndlessError, NoValueError, Path
from torch_ir.capture.fast.call_rule import Rule
from torch_ir.capture.fast.rule_answers import Question, described_by_values, item_rule
from torch_ir.capture.fast.shape_tensors import Ghost, NotCoveredError
from torch_ir.capture.fast.symbolic_size import SYMBOLIC
from torch_ir.capture.fast.values_on_demand import Given, NoValuesError, Values, plainly
from torch_ir.capture.program.provenance import code_line, is_asserting, running_frame
from torch_ir.errors import Cause
from torch_ir.ops.guards import decision, fixed_shape, fixed_value
from torch_ir.ops.torch_internals import OpOverload, is_transforming, pytree

if TYPE_CHECKING:
    from torch_ir.capture.fast.data_numbers import DataNumbers
    from torch_ir.capture.fast.shape_recorder import Recorder

_aten = torch.ops.aten
# operators that return a Python number -> the same value as a tensor
QUERIES: dict[Any, Callable[..., Tensor]] = {
    _aten.item.default: lambda value: value,
    _aten._local_scalar_dense.default: lambda value: value,
    _aten.is_nonzero.default: lambda value: value if value.dtype == torch.bool else value != 0,
    _aten.equal.default: lambda one, other: (one == other).all(),
    _aten.allclose.default: lambda *args, **kwargs: torch.isclose(*args, **kwargs).all(),
}
_EQUAL, _ITEMS = _aten.equal.default, (_aten.item.default, _aten._local_scalar_dense.default)
_INDEX, _MASKS = _aten.index.Tensor, (torch.bool, torch.uint8)
_UNIFORM = (_aten.rand.default, _aten.rand.generator)
_LESS = _aten.lt.Scalar


class DataReadError(NotCoveredError):
    """Python reads data; the model must run once more, with symbolic numbers and `max` of tensors as an operator."""


class UntraceableError(NotCoveredError):
    """Python needs something of the data at a place in the code where torch.export fails, too.

    Forward may catch the exception of torch.export, whose graph would then be that of another path.
    """

    def __init__(self, reason: str, *, cause: Cause = Cause.UNKNOWN, place: str = "") -> None:
        super().__init__(reason, cause=cause)
        self.place = place


class Queries:
    """The queries of one recording: `path` has the outcomes of branches on data."""

    def __init__(self, recorder: Recorder, path: Path, *, follows_data: bool = False, may_specialise: bool = False):
        self._recorder, self._path = recorder, path
        self._may_specialise = may_specialise
        self._answers: dict[tuple[int, int], Any] = {}  # by value, and the number of writes to its memory
        self._sized: dict[Any, Rule] = {}
        self._asked: dict[Any, Ghost] = {}  # the symbol of a number -> the tensor that it is read from
        self.follows_data = follows_data
        self.numbers: DataNumbers | None = None
        self.values: Values

    def begin(self, given: Callable[[int], Given]) -> None:
        """Begin the run; `given` returns the tensor of a value from before it."""
        self.values = Values(self._recorder.tape, given)

    def begin_again(self) -> None:
        """Begin another run, which takes the same path."""
        self._path = Path(tuple(self._path.taken), may_choose=self._path.may_choose)

    @property
    def is_hypothetical(self) -> bool:
        """Whether the run takes outcomes that the data may not have."""
        return self._path.is_hypothetical

    def close(self) -> None:
        if self.numbers is not None:
            self.numbers.close()

    # -- numbers and truths -------------------------------------------------------------------------------------------

    def answer(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return to Python the result of an operator that reads values."""
        if func not in QUERIES:
            raise NotCoveredError(f"{func} depends on the data")
        if func is _EQUAL and args[0].shape != args[1].shape:
            return False
        with self._recorder:
            asked = self._recorder.known(QUERIES[func](*args, **kwargs))
        if asked.numel() != 1:
            raise RuntimeError(f"a Tensor with {asked.numel()} elements cannot be converted to Scalar")
        is_number = func in _ITEMS or asked.dtype != torch.bool
        return self._number(asked) if is_number else self._answered(asked)

    def _answered(self, asked: Ghost) -> Any:
        """Return the value of a tensor with one element, which is guarded where it is first read."""
        key = asked.value, self._recorder.version(asked)
        if key not in self._answers:
            self._answers[key] = self._decided(asked)
        return self._answers[key]

    def _decided(self, asked: Ghost) -> Any:
        if self.values.are_constant(asked):
            return self._item(asked)
        if self._is_never(asked):
            return False
        self._require_data_followed()
        is_truth = asked.dtype == torch.bool
        is_asserted = is_truth and (self._is_check(asked) or is_asserting(self._frame()))
        if is_asserted and self._truth_if_known(asked) is not False:  # else forward raises
            return self._asserted(asked)
        if is_truth:
            try:
                outcome = self._path.take(partial(self._truth, asked))
            except (NoValueError, EndlessError) as error:
                raise NotCoveredError(str(error)) from None
        else:
            outcome = self._item(asked)
        with self._recording():
            decision(asked, outcome, self._place())
        return outcome

    def _asserted(self, asked: Ghost) -> bool:
        """Return the condition of an `assert`: the graph has it, too, and its failure is no path to explore."""
        with self._recording():
            _aten._assert_async.msg(asked, f"an assertion of the model fails at {self._place()}")
        return True

    def _require_data_followed(self) -> None:
        if not self.follows_data:
            raise DataReadError("Python reads data")

    def _truth_if_known(self, asked: Ghost) -> bool | None:
        try:
            return bool(self.values.item(asked))
        except NoValuesError:
            return None

    def _truth(self, asked: Ghost) -> bool:
        if self._path.may_choose and self._truth_if_known(asked) is None:
            self._path.has_chosen = True
            return False
        return bool(self._item(asked))

    def _item(self, asked: Ghost) -> Any:
        try:
            return self.values.item(asked)
        except NoValuesError as error:
            raise _refusal(error) from None

    def _read(self, ghost: Ghost) -> Tensor:
        try:
            return self.values.of(ghost)[0]
        except NoValuesError as error:
            raise _refusal(error) from None

    def _is_check(self, asked: Ghost) -> bool:
        """Whether a truth is if all elements of a tensor are true, which torch asks in order to raise if not."""
        made = self.values.maker(asked.value)
        return made is not None and made.rule.func is _aten._is_all_true.default

    def _is_never(self, asked: Ghost) -> bool:
        """Whether a truth is if a number drawn from [0, 1) is less than 0, such as the chance to drop a layer."""
        made = self.values.maker(asked.value)
        if made is None or made.rule.func is not _LESS or made.rule.attrs["other"] > 0:
            return False
        drawn = self.values.maker(made.inputs[0])
        return drawn is not None and drawn.rule.func in _UNIFORM

    def _number(self, asked: Ghost) -> Any:
        """Return a number as a symbol of the graph; that of a constant, or of a complex tensor, as it is."""
        if self.values.are_constant(asked) or asked.is_complex():
            return self._answered(asked)
        self._require_data_followed()
        if self._recorder.sizes is not None:
            raise NotCoveredError("a number that depends on the data, with dynamic sizes")
        if self.numbers is None:
            from torch_ir.capture.fast.data_numbers import DataNumbers  # slow to import, and needed by few models

            self.numbers = self.values.numbers = DataNumbers(self._needed, self._assumed)
        key = asked.value, self._recorder.version(asked)
        item: Any = self._recorder._write(item_rule(asked.form), [asked])
        if key not in self._answers:
            self._answers[key] = self.numbers.new(item)
            self._asked[self._answers[key].node.expr] = asked
        return self._answers[key]

    def _needed(self, expr: Any, kind: type) -> Any:
        """Return the value of an expression over numbers, which Python needs, and guard it."""
        assert self.numbers is not None
        if kind is not bool and not self._may_specialise:
            reason = "Python needs a number that depends on the data"
            raise UntraceableError(reason, cause=Cause.NUMBER_FROM_DATA, place=self._place())
        if kind is bool and is_asserting(self._frame()):
            return self.numbers.check(expr, "")
        if expr in self._asked:
            return self._fixed(self._asked[expr])
        dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}[kind]
        with self._recording():
            made: Any = _aten.scalar_tensor.default(self.numbers.wrapped(expr, kind), dtype=dtype)
        return self._answered(made) if kind is bool else self._fixed(made)

    def _fixed(self, asked: Ghost) -> Any:
        key = asked.value, -1 - self._recorder.version(asked)  # apart from the symbol of the same number
        if key not in self._answers:
            self._answers[key] = self._decided(asked)
        return self._answers[key]

    def _assumed(self, condition: torch.SymBool) -> None:
        with self._recording():
            _aten._assert_scalar.default(condition, "")  # the message is that of the graph

    # -- all values of a tensor ---------------------------------------------------------------------------------------

    def to_list(self, ghost: Any) -> Any:
        """Return the values of a tensor as nested lists; they are symbols of the graph where they can be."""
        if not self._may_specialise and not self.values.are_constant(ghost):
            with self._recording():
                return ghost.item() if not ghost.dim() else [self.to_list(part) for part in ghost.unbind(0)]
        values = self._read(ghost)
        with plainly():
            listed, has_nan = values.tolist(), not torch.equal(values, values)
        if not self.values.are_constant(ghost):
            if has_nan:
                raise NotCoveredError("Python reads values that contain NaN, which equals no value of a later run")
            with self._recording():
                fixed_value(ghost, self._recorder.known(values), self._place())
        return listed

    def leave(self) -> None:
        """Refuse to pass values to code outside torch."""
        reason = "the model passes the values of a tensor to code outside torch"
        raise UntraceableError(reason, cause=Cause.NUMPY, place=self._place())

    # -- results whose form depends on values -------------------------------------------------------------------------

    def sized(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: list[Ghost], why: str
    ) -> Any:
        """Record a call whose results have the form that present values give them."""
        if not self._may_specialise:
            raise NotCoveredError(why)
        made = self._recorder._write(self._rule_by_values(func, args, kwargs, tensors), tensors)
        with self._recorder:
            for leaf in pytree.tree_leaves(made):
                if type(leaf) is Ghost:
                    fixed_shape(leaf, list(leaf.shape), self._place())
        return made

    def _rule_by_values(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Ghost]
    ) -> Rule:
        query = Question(func, args, kwargs)
        if func is _INDEX:
            result, given = self._indexed(*args), []
        else:
            given = self._given(func, tensors)
            with plainly():
                filled, words = query.with_tensors(given)
                result = func(*filled, **words)
        rule = described_by_values(query, result, given)
        key = func, str((query.args, query.kwargs)), *query.forms, *[each and each.form for each in rule.outputs]
        return self._sized.setdefault(key, rule)  # one object for equal calls

    def _given(self, func: OpOverload, tensors: Sequence[Ghost]) -> list[Tensor]:
        """Return the values of tensors; for an operator of the user's zeros where there are none."""
        try:
            return self.values.of(*tensors)
        except NoValuesError as error:
            if func.namespace == "aten":
                raise _refusal(error) from None
        with plainly():
            return [torch.zeros(each.form.shape, dtype=each.form.dtype) for each in tensors]

    def _indexed(self, whole: Ghost, indices: Sequence[Ghost | None]) -> Tensor:
        """Return the result of an indexing on meta, for which only the masks are evaluated."""
        given: list[Tensor | None] = []
        for index in indices:
            if index is not None and index.dtype in _MASKS:
                mask = self._read(index)
                with plainly():
                    given += [part.to("meta") for part in mask.nonzero().unbind(1)]
            else:
                given.append(None if index is None else index.form.fake())
        with plainly():
            made: Tensor = _INDEX(whole.form.fake(), given)
        return made

    # -- calls with symbolic numbers ----------------------------------------------------------------------------------

    def with_numbers(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record a call with symbolic numbers, or with their values where they decide the form of the result."""
        assert self.numbers is not None
        if not self.numbers.decide_form(func, args, kwargs):
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if type(leaf) is Ghost]
            return self._recorder._write(self.numbers.rule(func, args, kwargs), tensors)
        if not self._may_specialise:  # torch.export may keep a size symbolic
            raise NotCoveredError(f"{func} has a number that depends on the data, which may decide a size")
        with self._recorder:
            args, kwargs = pytree.tree_map_only(SYMBOLIC, _plain, (tuple(args), dict(kwargs)))
            return func(*args, **kwargs)

    # -- where we are -------------------------------------------------------------------------------------------------

    def _recording(self) -> AbstractContextManager[Any]:
        """Return a context in which calls are recorded, inside a call that is recorded and outside of one."""
        return nullcontext() if is_transforming() else self._recorder

    def _place(self) -> str:
        """Return the user's innermost line, which may be in a function that forward calls."""
        frame = self._frame()
        return "" if frame is None else code_line(frame.f_code, frame.f_lineno)

    def _frame(self) -> FrameType | None:
        return running_frame(sys._getframe(1), type(self._recorder).run.__code__)


def _refusal(error: NoValuesError) -> NotCoveredError:
    return NotCoveredError(str(error), cause=Cause.NO_VALUE)


def _plain(number: Any) -> Any:
    return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(number)](number)
