"""`Recorder`: records one run of a model in ordinary Python, through torch's function and dispatch modes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from torch_ir.capture.data_branches.decision_paths import NoValueError, Path
from torch_ir.capture.diagnosis import definition
from torch_ir.capture.naming.gradient_places import GradientPlaces
from torch_ir.capture.naming.running_functions import FunctionCalls
from torch_ir.capture.naming.running_modules import ModuleCalls
from torch_ir.capture.naming.source_lines import SourceLines
from torch_ir.capture.program.provenance import FUNCTION, user_line, users_frame
from torch_ir.capture.record.escapes import ASKING_FOR_LAYOUT, LEAVING, SHOWING, blank
from torch_ir.capture.record.fx_tape import Tape
from torch_ir.capture.record.untracked_tensors import UntrackedTensors
from torch_ir.capture.state.assigned_buffers import assignments_written
from torch_ir.capture.state.generator_states import GeneratorStates
from torch_ir.capture.state.tensor_memory import SET_DATA, refusal
from torch_ir.errors import ConversionError
from torch_ir.ops.effects import is_forbidden, may_draw, mutated_arguments, written_arguments
from torch_ir.ops.functional_calls import FUNCTIONAL_CALLS
from torch_ir.ops.grouped_products import grouped_rule
from torch_ir.ops.guards import OFFSET, decision, fixed_shape
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import (
    DispatchKey,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    dense_memory_key,
    fake_mode,
    pytree,
    storage_key,
    unset_fake_temporarily,
)

_aten = torch.ops.aten
# Operators that return a Python number -> the same value as a tensor.
_QUESTIONS: dict[OpOverload, Callable[..., torch.Tensor]] = {
    _aten.item.default: lambda value: value,
    _aten._local_scalar_dense.default: lambda value: value,
    _aten.is_nonzero.default: lambda value: value if value.dtype == torch.bool else value != 0,
    _aten.equal.default: lambda one, other: (one == other).all(),
    _aten.allclose.default: lambda *args, **kwargs: torch.isclose(*args, **kwargs).all(),
}
_NEW = (_aten.lift_fresh.default, _aten.lift_fresh_copy.default)
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_COND = torch.ops.higher_order.cond
_WHILE = torch.ops.higher_order.while_loop


class Recorder:
    """Records a run; `path` gives the outcomes of the model's branches on data."""

    def __init__(self, model: nn.Module, mode: FakeTensorMode, path: Path, with_gradients: bool = False) -> None:
        self.model = model
        self.path = path
        self.modules = ModuleCalls(model)
        self.untracked = UntrackedTensors(self.modules, self._here, self._meta)
        self.tape = Tape(mode, lambda tensor: self.untracked.node_of(self.tape, tensor))
        # memory that was written to, with a copy of its former content
        self.written: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.layout = ""  # the first line that reads strides or an offset
        self._answers: dict[fx.Node, tuple[int | None, Any]] = {}  # with the memory that the value is in
        self._functions = FunctionCalls()
        self._is_paused = False
        self._is_busy = False
        self._composites: dict[OpOverload, bool] = {}  # whether their result sizes depend on data
        self._operators = _Operators(self)
        self._gradients = GradientPlaces() if with_gradients else None
        self.generator = GeneratorStates()
        self._lines = SourceLines(Recorder.run.__code__)

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the model; afterwards, restore the memory that it wrote to."""
        self.untracked.note_existing()
        try:
            with (
                assignments_written(self.model, self.tape.known),
                self.modules.watched(),
                self.generator.watched() if self._gradients is not None else nullcontext(),
                self._operators,
                _Functions(self),
            ):
                return self.model(*args, **kwargs)
        finally:
            for storage, content in self.written.values():
                storage.copy_(content)

    def made(self) -> list[torch.Tensor]:
        """Return the live tensors that the run created."""
        return self.untracked.new_ones(self.tape.living())

    # -- functions ----------------------------------------------------------------------------------------------------

    def function(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Handle a call of a torch function or method in the model's code."""
        if self._is_busy:  # the recorder makes the call
            return func(*args, **kwargs)
        if func in SHOWING:
            with self._paused():
                return func(*args, **kwargs)
        if func == SET_DATA:
            raise refusal("`t.data = ...`")
        if func in LEAVING:
            return self._leave(func, args, kwargs)
        if func in ASKING_FOR_LAYOUT:
            if func is torch.Tensor.storage_offset and not self.layout.endswith(OFFSET):
                self.layout = f"{self._place()}{OFFSET}"
            self.layout = self.layout or self._place()
            return func(*args, **kwargs)
        if func is torch.Tensor.__deepcopy__:
            return args[1].setdefault(id(args[0]), args[0].clone())
        return self._functions.call(func, args, kwargs)

    def _leave(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Pass data to code outside torch: the values, or zeros if there are none."""
        with self._paused():
            if self.tape.node_of(args[0]) in self.untracked.constants and _memory_of(args[0]) in self.written:
                place = self._place()
                raise ConversionError(
                    f"{place}: forward reads the values of a tensor that it writes to; register the tensor as a buffer"
                )
            values = self.untracked.leave(self.tape, args[0])
            with unset_fake_temporarily():
                return func(values, *args[1:], **kwargs)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        outer, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = outer

    # -- operators ----------------------------------------------------------------------------------------------------

    def operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Handle a call of an operator."""
        if self._is_paused:
            return func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, args)
        outer, self._is_busy = self._is_busy, True
        try:
            return self._call(func, args, kwargs)
        finally:
            self._is_busy = outer

    def _call(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func in _QUESTIONS:
            return self._decide(func, args, kwargs)
        self.untracked.notice_changes(self.tape, (args, kwargs))
        if func in _NEW:
            return self._new(func, args[0])
        if self._gradients is not None and (form := FUNCTIONAL_CALLS.get(func)) is not None:
            with self._operators:
                result = form(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if is_forbidden(str(func)):
            return self._lose_track(func, args, kwargs)
        nodes = self.tape.nodes_of((tuple(args), dict(kwargs)))
        self._before_it_writes(func, args, kwargs)
        result = self._result(func, args, kwargs)
        if not isinstance(result, (torch.Tensor, list, tuple)) and result is not None:
            return result  # a size or stride
        self.tape.call(func, nodes[0], nodes[1], result, self._meta())
        if may_draw(func):
            self.generator.drawn()
        if self._makes_sizes_of_data(func, args, kwargs):
            self._guard_shapes(result)
        return result

    def _makes_sizes_of_data(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the result's shape may depend on values."""
        if func is _aten.index.Tensor:
            return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        if torch.Tag.dynamic_output_shape in func.tags or func.namespace != "aten":
            return True
        if func not in self._composites:
            is_made_of_others = func.has_kernel_for_dispatch_key(_COMPOSITE)
            self._composites[func] = is_made_of_others and _has_open_sizes(func, args, kwargs)
        return self._composites[func]

    def _guard_shapes(self, result: Any) -> None:
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and all(type(size) is int for size in tensor.shape):
                expected = (self.tape.node_of(tensor), list(tensor.shape), self._place())
                self.tape.call(fixed_shape, expected, {}, None, self._meta())

    def _result(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the operator; on fake tensors, an operator without a fake kernel runs on zeros."""
        first = args[0] if args else None
        rule = grouped_rule(str(func), first.dtype) if isinstance(first, FakeTensor) else None
        try:
            return (rule or func)(*args, **kwargs)
        except Exception:
            has_values = not any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves((args, kwargs)))
            if has_values or func.namespace == "aten":
                raise
        with unset_fake_temporarily():
            args, kwargs = pytree.tree_map_only(torch.Tensor, blank, (args, kwargs))
            result = func(*args, **kwargs)
            return pytree.tree_map_only(torch.Tensor, self.tape.mode.from_tensor, result)

    def _before_it_writes(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Save the content of the memory that a call writes to, and forget the numbers that Python read from it."""
        bound = bind(func, args, kwargs)
        written = [bound.get(name) for name in written_arguments(func, bound)]
        found = [leaf for leaf in pytree.tree_leaves(written) if dense_memory_key(leaf) is not None]
        for tensor in found:
            storage = tensor.untyped_storage()
            if storage_key(storage) not in self.written and not isinstance(tensor, FakeTensor):
                self.written[storage_key(storage)] = (storage, storage.clone())
        if found and self._answers:
            memory = set(map(dense_memory_key, found))
            self._answers = {node: known for node, known in self._answers.items() if known[0] not in memory}
        self.untracked.keep_what_left(self.tape, found)

    def _new(self, func: OpOverload, tensor: torch.Tensor) -> torch.Tensor:
        """Record a literal, or a tensor made from an array."""
        self.untracked.note_new(tensor)
        node = self.tape.node_of(tensor)
        result: torch.Tensor = func(tensor).clone()
        self.tape.call(_aten.lift_fresh_copy.default, (node,), {}, result, self._meta())
        return result

    def _lose_track(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator that is forbidden in graphs, such as one that replaces the memory of a tensor."""
        bound = bind(func, args, kwargs)
        weights = {*map(id, self.model.parameters()), *map(id, self.model.buffers())}
        if any(id(bound[name]) in weights for name in mutated_arguments(func)):  # it could not be put back
            raise refusal(str(func))
        result = func(*args, **kwargs)
        for name in mutated_arguments(func):
            self.untracked.note_lost(self.tape, bound[name])
        return result

    def _higher_order(self, func: HigherOrderOperator, args: Sequence[Any]) -> Any:
        """Follow `cond` and `while_loop` like branches and loops in Python."""
        if self._gradients is not None:
            raise ConversionError(
                f"{func} in a training step is not supported: its gradient does not consist of operators"
            )
        with self._operators:
            if func is _COND:
                taken, other, operands = args[1:]
                return (taken if torch.is_nonzero(args[0]) else other)(*operands)
            if func is _WHILE:
                condition, step, carried, others = args
                while torch.is_nonzero(torch.as_tensor(condition(*carried, *others))):
                    carried = step(*carried, *others)
                return carried
        raise ConversionError(f"recording does not support {func}; torch.export does")

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _decide(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a number to Python: the outcome of the path, recorded as a decision node."""
        if func is _aten.equal.default and args[0].shape != args[1].shape:
            return False
        with self._operators:
            question = _QUESTIONS[func](*args, **kwargs)
        if question.numel() != 1:
            return func(*args, **kwargs)  # which raises
        self.untracked.notice_changes(self.tape, question)
        node = self.tape.node_of(question)
        if node in self._answers:
            return self._answers[node][1]
        if self._gradients is not None and _is_never(node):
            return False
        has_value = not isinstance(question, FakeTensor)
        outcome: Any
        if question.dtype == torch.bool:
            outcome = self.path.take((lambda: bool(question.item())) if has_value else None)
        elif has_value:
            outcome = question.item()
        else:
            raise NoValueError("Python needs it as a number")
        self._answers[node] = dense_memory_key(question), outcome
        self.tape.call(decision, (node, outcome, self._place()), {}, None, self._meta())
        return outcome

    # -- where we are -------------------------------------------------------------------------------------------------

    def _meta(self) -> dict[str, Any]:
        """Return the module stack and source line of a call, as torch.export stores them, and the torch function."""
        scope, line = self.modules.scope, self._lines.trace()
        if self._gradients is not None:
            scope, line = self._gradients.place(scope, line)
        return {
            "nn_module_stack": {} if scope is None else scope.stack,
            "stack_trace": line,
            FUNCTION: self._functions.running,
        }

    def _here(self) -> tuple[str, str]:
        """Return the class name of the running module, and the line."""
        scope = self.modules.scope
        kind = type(self.model).__name__ if scope is None else scope.kind.rpartition(".")[2]
        return kind, self._place() or definition(self.model)

    def _place(self) -> str:
        """Return the user's innermost line, which may be in a function that forward calls."""
        return user_line(users_frame(sys._getframe(1), Recorder.run.__code__))


def _is_never(question: Any) -> bool:
    """Whether a question is if a number drawn from [0, 1) is less than 0, such as the chance to drop a layer."""
    if getattr(question, "target", None) is not _aten.lt.Scalar:
        return False
    drawn, limit = question.args
    return drawn.target in (_aten.rand.default, _aten.rand.generator) and limit <= 0


def _memory_of(tensor: torch.Tensor) -> Any:
    return None if isinstance(tensor, FakeTensor) else storage_key(tensor.untyped_storage())


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # its own operators on the tensors that it wraps are recorded instead
        return self.recorder.operator(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.recorder.function(func, args, kwargs or {})


def _has_open_sizes(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator's decomposition returns sizes that depend on data."""
    if any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves((args, kwargs))):
        return False  # the result has such sizes already
    apart = fake_mode(allow_non_fake_inputs=False)  # a separate mode: it raises for unbound open sizes
    try:
        with apart:
            fake = partial(apart.from_tensor, static_shapes=True)
            given = pytree.tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs)))
            result = func(*given[0], **given[1])
    except Exception:  # such as a size that depends on data
        return True
    sizes = (size for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) for size in leaf.shape)
    return any(type(size) is not int for size in sizes)
