"""Shape rules: the results of an operator for inputs of given forms, inferred once and cached for the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from torch_ir.capture.fast.call_rule import Output, Place, Rule
from torch_ir.capture.fast.shape_tensors import (
    Form,
    Ghost,
    NeedsValuesError,
    NotCoveredError,
    form_of,
    interned_form,
)
from torch_ir.capture.fast.symbolic_size import SYMBOLIC, Size, live_size
from torch_ir.capture.naming.export_names import call_name
from torch_ir.capture.program.functional import functional_twin
from torch_ir.ops.calling import masked
from torch_ir.ops.effects import (
    gives_its_input,
    is_forbidden,
    may_alias,
    mutated_arguments,
    updates_statistics,
)
from torch_ir.ops.grouped_products import grouped_rule
from torch_ir.ops.own_shape_rules import call_on_meta
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import (
    DataDependentOutputError,
    DynamicOutputShapeError,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    enable_python_dispatcher,
    fake_mode,
    memory_key,
    plain_call,
    pytree,
)
from torch_ir.ops.torch_types import to_name

if TYPE_CHECKING:
    from torch_ir.capture.fast.varying_sizes import OpenSizes

Key = tuple[Any, ...]
_CASTS = (torch.ops.aten.to.device, torch.ops.aten.to.dtype, torch.ops.aten.to.dtype_layout)
_ASSERT = torch.ops.aten._assert_tensor_metadata.default
_PLAIN = frozenset((int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
_TRUE, _FALSE = ("true",), ("false",)
_MOST_KNOWN = 1 << 16  # rules; a model needs hundreds
_CPU = torch.device("cpu")
_default_dtype = torch.get_default_dtype  # the original, not its patch
_ATTRIBUTES = (bool, int, float, complex, str, type(None))


class _Answer(NamedTuple):
    """The inferred result of a call: the new value of a write, the result, and the tensors that were passed."""

    new_value: Form | None
    result: Any
    given: Sequence[torch.Tensor]


class UnknownTensorError(Exception):
    """A tensor that is not a ghost."""


def key_of_call(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any] | None, tensors: list[Ghost]) -> Key:
    """Return the cache key of a call, and collect its tensors.

    It begins with the function that the operator calls, which is hashed in C, and the default dtype.
    """
    parts = [plain_call(func), _default_dtype()]
    for value in args:
        kind = type(value)
        if kind is Ghost:  # as in `key_of`, without a call for each argument
            tensors.append(value)
            parts.append(value.form)
        elif kind in _PLAIN:
            parts.append(value)
        else:
            parts.append(key_of(value, tensors))
    if kwargs:
        parts += [(name, key_of(value, tensors)) for name, value in kwargs.items()]
    return tuple(parts)


def key_of(value: Any, tensors: list[Ghost]) -> Any:
    """Return a cache key for an argument: forms for tensors, which are collected, and values with their types."""
    kind = type(value)
    if kind is Ghost:
        tensors.append(value)
        return value.form
    if kind in _PLAIN:
        return value
    if kind is bool:  # True == 1
        return _TRUE if value else _FALSE
    if kind is float or kind is complex:  # 0.0 == -0.0 == 0
        return (kind, repr(value))
    if kind is list or kind is tuple or kind is torch.Size:
        return tuple([key_of(item, tensors) for item in value])
    if isinstance(value, torch.Tensor):
        raise UnknownTensorError
    if kind in SYMBOLIC:
        return live_size(value)
    raise NotCoveredError(f"an argument of type {kind.__name__}")


class Inference:
    """The rules of one run; those of torch's own operators are cached for later runs."""

    known: ClassVar[dict[Key, Rule]] = {}

    def __init__(self, sizes: OpenSizes | None = None) -> None:
        self._custom: dict[Key, Rule] = {}  # a custom operator may be registered again
        self._fakes = FixedFakes()
        self._sizes = sizes

    def rule(self, key: Key, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Rule:
        """Return the rule of a call, from the cache or from torch."""
        if self._sizes is not None and any(map(has_size, key)):
            return self._open_rule(self._sizes, key, func, args, kwargs)
        rules = self.known if func.namespace == "aten" else self._custom
        found = rules.get(key)
        if found is None:
            found = Question(func, args, kwargs).asked(self._fakes)
            if len(rules) >= _MOST_KNOWN:
                rules.clear()
            rules[key] = found
        return found

    def _open_rule(
        self, sizes: OpenSizes, key: Key, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Rule:
        """Return the same for open sizes, with the present knowledge about them."""

        def question() -> Callable[[Any], Rule]:
            return Question(func, args, kwargs, sizes.current_form, sizes.current_of).asked

        return sizes.rule(key, question, func.namespace == "aten")  # type: ignore[no-any-return]


def has_size(part: Any) -> bool:
    """Whether a key, or a part of one, has symbolic sizes."""
    kind = type(part)
    if kind is Form:
        return part.is_open  # type: ignore[no-any-return]
    return kind is Size or (kind is tuple and any(map(has_size, part)))


class FixedFakes:
    """Fake tensors of fixed sizes, for shape rules."""

    def __init__(self) -> None:
        self.form_of = form_of

    @cached_property
    def mode(self) -> FakeTensorMode:
        return fake_mode()

    def by_own_rule(self, question: Question) -> _Answer | None:
        """Apply our own shape rule; None if there is none for these tensors."""
        func, twin, forms = question.func, question.twin, question.forms
        if any(form.device != _CPU for form in forms):
            return None
        metas, dtypes = [form.fake() for form in forms], [form.dtype for form in forms]
        given, words = question.filled(metas, self)
        try:
            new_value = form_of(call_on_meta(twin, dtypes, given, words)) if twin is not func else None
            return _Answer(new_value, call_on_meta(func, dtypes, given, words), metas)
        except Exception:
            return None

    def current(self, form: Form) -> Form:
        return form

    def note(self, result: Any) -> None:
        pass

    def fake(self, form: Form) -> torch.Tensor:
        return FakeTensor(self.mode, form.fake(), form.device)

    def number(self, value: Any) -> Any:
        return value


class Question:
    """A call whose rule is to be inferred; it holds forms and sizes, and no tensor."""

    def __init__(
        self,
        func: OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        form: Callable[[Form], Form] = lambda form: form,
        size: Callable[[Any], Any] | None = None,
    ) -> None:
        if is_forbidden(str(func)):
            raise NotCoveredError(f"{func} is not allowed in a graph")
        if torch.Tag.data_dependent_output in func.tags:
            raise NotCoveredError(f"{func} depends on the data")
        self.func = func
        self.twin = _functional_twin(func) if mutated_arguments(func) else func
        places = _Places(form, size)
        self.args, self.kwargs = places.in_place_of_tensors(args, kwargs)
        self.forms = places.forms
        self.bound = bind(self.twin, self.args, self.kwargs)
        if updates_statistics(func, self.bound):
            raise NotCoveredError(f"{func} updates running statistics")

    def asked(self, source: Any) -> Rule:
        """Infer the rule with our own shape rules, else with fake tensors, as torch.export does."""
        func = self.func
        new_value, result, given = source.by_own_rule(self) or self._on_fakes(source)
        result = masked(result, self.bound.get("output_mask"))
        if any(source.form_of(fake) is not source.current(form) for fake, form in zip(given, self.forms, strict=True)):
            raise NotCoveredError(f"{func} changes the shape of its input")
        described = _described(func, self.twin, self.bound, result, given, source.form_of)
        rule = replace(described, new_value=new_value, call=(self.args, self.kwargs))
        if func in _CASTS:
            rule = replace(rule, assertion=_assertion(self.forms[0].dtype, self.forms[0].device))
        return rule

    def _on_fakes(self, source: Any) -> _Answer:
        fakes = [source.fake(form) for form in self.forms]
        with enable_python_dispatcher(), source.mode:
            given, words = self.filled(fakes, source)
            try:
                rule = grouped_rule(str(self.func), self.forms[0].dtype if self.forms else None)
                result = (rule or self.func)(*given, **words)
                source.note(result)
                new_value = source.form_of(self.twin(*given, **words)) if self.twin is not self.func else None
            except _needs_data() as error:
                raise NeedsValuesError(f"{self.func} depends on the data") from error
            except Exception as error:
                if self.func.namespace == "aten":
                    raise
                raise NeedsValuesError(f"{type(error).__name__}: {error}") from error
        return _Answer(new_value, result, fakes)

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with real tensors filled in."""
        return self.filled(tensors, _AsGiven)

    def filled(self, tensors: Sequence[torch.Tensor], source: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with tensors and torch's numbers filled in."""
        words = {name: _filled(value, tensors, source) for name, value in self.kwargs.items()}
        return [_filled(value, tensors, source) for value in self.args], words


def _needs_data() -> tuple[type[Exception], ...]:
    """The errors of operators whose results depend on values."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # slow; imported by the fake mode

    return GuardOnDataDependentSymNode, DataDependentOutputError, DynamicOutputShapeError


class _Places:
    """Replaces the tensors of a call by their indices: arguments first, then keywords."""

    def __init__(self, form: Callable[[Form], Form], size: Callable[[Any], Any] | None) -> None:
        self.forms: list[Form] = []
        self._form = form
        self._size = size

    def in_place_of_tensors(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        positional = [self._replaced(value) for value in args]
        return positional, {name: self._replaced(value) for name, value in kwargs.items()}

    def _replaced(self, value: Any) -> Any:
        if type(value) is Ghost:
            self.forms.append(self._form(value.form))
            return Place(len(self.forms) - 1)
        if self._size is not None and isinstance(value, SYMBOLIC):
            return self._size(value)
        return [self._replaced(item) for item in value] if isinstance(value, (list, tuple)) else value


def _filled(value: Any, fakes: Sequence[torch.Tensor], source: Any) -> Any:
    """Return an argument with fake tensors and torch's numbers filled in."""
    if type(value) is Place:
        return fakes[value]
    return [_filled(item, fakes, source) for item in value] if isinstance(value, list) else source.number(value)


class _AsGiven:
    """A source without symbolic numbers."""

    @staticmethod
    def number(value: Any) -> Any:
        return value


def described_by_values(query: Question, result: Any, given: Sequence[torch.Tensor]) -> Rule:
    """Return the rule of a call that was run on real tensors."""
    made = _described(query.func, query.twin, query.bound, result, given)
    if made.is_question:
        raise NotCoveredError(f"{query.func} depends on the data")
    return replace(made, call=(query.args, query.kwargs))


@cache
def item_rule(form: Form) -> Rule:
    """Return the rule of `item`, whose result is a tensor of the graph."""
    is_float, is_bool = form.dtype.is_floating_point, form.dtype == torch.bool
    dtype = torch.float64 if is_float else torch.bool if is_bool else torch.int64
    made = Output(interned_form(((), (), dtype, form.device, 0)))
    item, place = torch.ops.aten.item.default, Place(0)
    return Rule(item, str(item), "item", ("self",), (0,), {}, (made,), None, call=([place], {}))


def _functional_twin(func: OpOverload) -> OpOverload:
    """Return the operator that computes the new value of an in-place call."""
    twin = functional_twin(func) if mutated_arguments(func) == ("self",) else None
    if twin is None:
        raise NotCoveredError(f"{func} writes to its arguments")
    return twin


def _described(
    func: OpOverload,
    twin: OpOverload,
    bound: Mapping[str, Any],
    result: Any,
    given: Sequence[torch.Tensor],
    described: Callable[[torch.Tensor], Form] = form_of,
) -> Rule:
    inputs: dict[str, int] = {}
    attrs: dict[str, Any] = {}
    for name, value in bound.items():
        _sort(name, value, inputs, attrs)
    is_input = gives_its_input(str(func), attrs)
    output = partial(_output, given=given, is_input=is_input, may_alias=may_alias(func), described=described)
    is_several = isinstance(result, (list, tuple))
    results = list(result) if is_several else [result]
    is_question = not all(item is None or isinstance(item, torch.Tensor) for item in results)
    if is_question and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result)):
        raise NotCoveredError(f"{func} returns a list of tensors and other results")
    return Rule(
        func,
        str(twin),
        call_name(func.overloadpacket.__name__),
        tuple(inputs),
        tuple(inputs.values()),
        attrs,
        () if is_question or result is None else tuple(output(item) for item in results),
        type(result) if is_several else None,
        result if is_question else None,
        is_question,
    )


@cache
def _assertion(dtype: torch.dtype, device: torch.device) -> Rule:
    """Return the rule of the assertion that torch.export inserts before a cast."""
    facts = {"dtype": dtype, "device": device, "layout": torch.strided}
    bound = bind(_ASSERT, (Place(0),), facts)
    return replace(_described(_ASSERT, _ASSERT, bound, None, ()), name="_assert_tensor_metadata_default")


def _sort(name: str, value: Any, inputs: dict[str, int], attrs: dict[str, Any]) -> None:
    """Sort an argument into tensors and other values; a list with tensors is split into elements."""
    if type(value) is Place:
        inputs[name] = int(value)
    elif isinstance(value, (list, tuple)) and _has_place(value):
        for index, item in enumerate(value):
            _sort(f"{name}.{index}", item, inputs, attrs)
    else:
        attrs[name] = _attribute(value)


def _has_place(value: Any) -> bool:
    return any(map(_has_place, value)) if isinstance(value, (list, tuple)) else type(value) is Place


def _attribute(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_attribute(item) for item in value]
    named = to_name(value)
    if not isinstance(named, _ATTRIBUTES) and type(named) is not Size:
        raise NotCoveredError(f"an argument of type {type(value).__name__}")
    return named


def _output(
    result: torch.Tensor | None,
    given: Sequence[torch.Tensor],
    is_input: bool,
    may_alias: bool,
    described: Callable[[torch.Tensor], Form],
) -> Output | None:
    if result is None:
        return None
    form = described(result)
    same = next((index for index, tensor in enumerate(given) if tensor is result), None)
    is_lazy = result.is_conj() or result.is_neg()  # its elements are not those in the memory
    memory = memory_key(result) if may_alias else None
    shared = next((index for index, tensor in enumerate(given) if memory_key(tensor) == memory), None)
    return Output(form, same, None, shared) if is_lazy else Output(form, same, 0 if is_input else shared)
