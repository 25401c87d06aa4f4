"""`Recorder`: runs a model on ghosts, and records every operator call with its module and source line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from torch_ir.capture.data_branches.decision_paths import Path
from torch_ir.capture.fast.autocast_regions import AutocastRegions
from torch_ir.capture.fast.call_rule import Rule
from torch_ir.capture.fast.call_tape import Step, Tape
from torch_ir.capture.fast.data_queries import QUERIES, Queries
from torch_ir.capture.fast.rewritten_calls import become, rewritten
from torch_ir.capture.fast.rule_answers import Inference, Key, UnknownTensorError, has_size, key_of_call
from torch_ir.capture.fast.shape_tensors import STALE, Ghost, NeedsValuesError, NotCoveredError
from torch_ir.capture.instrument import builtins_of_tensors
from torch_ir.capture.naming.gradient_places import GradientPlaces
from torch_ir.capture.naming.running_functions import FunctionCalls
from torch_ir.capture.naming.running_modules import ModuleCalls
from torch_ir.capture.naming.source_lines import SourceLines
from torch_ir.capture.state.generator_states import GeneratorStates
from torch_ir.ir import IR
from torch_ir.ops.functional_calls import FUNCTIONAL_CALLS
from torch_ir.ops.torch_internals import OpOverload, TorchDispatchMode, rewritten_for_sizes

if TYPE_CHECKING:
    from torch_ir.capture.fast.varying_sizes import OpenSizes

_is_grad_enabled = torch.is_grad_enabled  # the original, not its patch
_DEPTH = 2  # frames from `_write` to the nearest possible caller of an operator
_known_rules = Inference.known
_new_tuple = tuple.__new__  # of a NamedTuple: its own constructor is a function in Python
_INDEX = torch.Tensor.__getitem__
_LIFT = torch.ops.aten.lift_fresh.default
_LIFT_COPY = torch.ops.aten.lift_fresh_copy.default


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Records a run; raises NotCoveredError for anything that it cannot record exactly."""

    def __init__(
        self,
        model: nn.Module,
        with_functions: bool = False,
        sizes: OpenSizes | None = None,
        with_gradients: bool = False,
        *,
        path: Path | None = None,
        follows_data: bool = False,
        may_specialise: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.model = model
        self.tape = Tape()
        self.sizes = self.tape.run.sizes = sizes
        self.modules = ModuleCalls(model)
        self.queries = Queries(self, path or Path(), follows_data=follows_data, may_specialise=may_specialise)
        self._inference = Inference(sizes)
        self.regions = AutocastRegions(has_open_sizes=sizes is not None)
        self.ghosts: dict[int, Ghost] = {}  # of tensors from before the run, by identity
        self._functions = Functions() if with_functions else None
        self.can_repeat = not with_gradients  # whether a second run can be compared with the first
        self._writes: Counter[int] = Counter()  # by the memory that was written to
        self._conjugated: set[int] = set()  # memories with a lazy conjugate, and those of these
        self._lines = SourceLines(Recorder.run.__code__)
        self.with_gradients = self.tape.run.is_training = with_gradients
        self.generator = GeneratorStates()
        self._gradients = GradientPlaces() if with_gradients else None

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        has_symbols = self.sizes is not None or self.queries.follows_data
        builtins = builtins_of_tensors() if has_symbols else nullcontext()
        indexing = SizeIndexing() if has_symbols else nullcontext()
        watched = self.generator.watched() if self.with_gradients else self.regions.watched()
        with builtins, self.modules.watched(), watched, self, self._functions or nullcontext(), indexing:
            return self.model(*args, **kwargs)

    def given(self, tensor: torch.Tensor, ghost: Ghost) -> torch.Tensor:
        """Return what the model receives for an example input with this ghost."""
        return ghost

    def guarded(self, ir: IR, inputs: Mapping[str, torch.Tensor]) -> IR:
        """Return the graph of the run with guards for what was assumed of its inputs, which are given by name."""
        return ir

    def version(self, tensor: torch.Tensor) -> int:
        """Return the number of writes to the memory of a tensor."""
        return self._writes[self.tape.memory[tensor.value]] if isinstance(tensor, Ghost) else 0

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the check would take longer than the call

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not isinstance(func, OpOverload):
            raise NotCoveredError(f"{func} is a higher-order operator")
        if _is_grad_enabled():
            self.tape.run.has_gradients = True
        if self._gradients is not None and (form := FUNCTIONAL_CALLS.get(func)) is not None:
            with self:
                result = form(*args, **kwargs or {})
            if result is not NotImplemented:
                return result
        if func is _LIFT:
            func = _LIFT_COPY
        tensors: list[Ghost] = []
        try:
            key = key_of_call(func, args, kwargs, tensors)
        except UnknownTensorError:
            return self._with_constants(func, args, kwargs or {})
        if not self.regions.devices:  # the common case
            rule = _known_rules.get(key)
            if rule is not None and not rule.is_question:
                return self._write(rule, tensors)
        return self._called(key, func, args, kwargs or {}, tensors)

    def _called(
        self, key: Key, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: list[Ghost]
    ) -> Any:
        if self.regions.devices:
            result = self.regions.opened(self, key, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if torch.Tag.data_dependent_output in func.tags or func in QUERIES:
            return self.queries.answer(func, args, kwargs)
        if self.queries.numbers is not None and has_size(key):
            return self.queries.with_numbers(func, args, kwargs)
        rule = _known_rules.get(key)
        if rule is None:
            result = rewritten(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        try:
            rule = rule or self._inference.rule(key, func, args, kwargs)
        except NeedsValuesError as error:
            return self.queries.sized(func, args, kwargs, tensors, str(error))
        # the result is no local: this frame may outlive the call, and torch copies shared results
        return rule.answer if rule.is_question else self._write(rule, tensors)

    def _write(self, rule: Rule, tensors: list[Ghost]) -> Any:
        if rule.assertion is not None:
            self._write(rule.assertion, tensors[:1])
        tape = self.tape
        run, forms, memory = tape.run, tape.forms, tape.memory
        values: list[int] = []
        for tensor in tensors:
            if tensor.run is not run:
                raise NotCoveredError(f"{rule.func} is called on {STALE}")
            values.append(tensor.value)
        inputs = values if rule.is_in_order else [values[place] for place in rule.order]
        first = len(forms)
        function = self._functions.calls.running if self._functions is not None else ""
        scope, line = self.modules.scope, self._lines.here(_DEPTH)
        if self._gradients is not None:
            scope, line = self._gradients.place(scope, line)
            if rule.is_random:
                self.generator.drawn()
        tape.steps.append(_new_tuple(Step, (rule, inputs, first, scope, line, function)))
        output = rule.only_output
        if output is not None:  # the common case
            form, view_of = output.form, output.view_of
            forms.append(form)
            memory.append(first if view_of is None else memory[values[view_of]])
            return form.ghost(first, run)
        if rule.new_value is not None:
            written = memory[values[rule.order[0]]]
            if written in self._conjugated:
                raise NotCoveredError("forward writes to a tensor that has a lazy conjugate, or is one")
            self._writes[written] += 1
        made: list[Ghost | None] = []
        for output in rule.outputs:
            if output is None:
                made.append(None)
                continue
            value = len(forms)
            forms.append(output.form)
            memory.append(value if output.view_of is None else memory[values[output.view_of]])
            if output.conjugate_of is not None:
                self._conjugated |= {value, memory[values[output.conjugate_of]]}
            if output.same_as is None:
                made.append(output.form.ghost(value, run))
            else:
                tensors[output.same_as].value = value
                made.append(tensors[output.same_as])
        if rule.makes_list is None:
            return made[0] if made else None
        return rule.makes_list(made)

    def _with_constants(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record a call with tensors from before the run, which become constants."""
        given = [self.known(value) for value in args]
        words = {name: self.known(value) for name, value in kwargs.items()}
        tensors: list[Ghost] = []
        try:
            key = key_of_call(func, given, words, tensors)
        except UnknownTensorError:
            raise NotCoveredError(f"{func} is called on a tensor that no recorded operator made") from None
        return self._called(key, func, given, words, tensors)

    def set_data(self, tensor: Ghost, value: Any) -> None:
        """Record `t.data = value`: from now on, the tensor is the other one."""
        value = self.known(value)
        is_like = type(value) is Ghost and (value.dtype, value.device) == (tensor.dtype, tensor.device)
        if not is_like:
            raise NotCoveredError("forward assigns data of another dtype to a tensor")
        become(self, tensor, value)

    def known(self, value: Any) -> Any:
        """Replace tensors from before the run by ghosts: weights by theirs, real tensors by those of new constants."""
        if isinstance(value, (list, tuple)):
            return [self.known(item) for item in value]
        if id(value) in self.ghosts:
            return self.ghosts[id(value)]
        if type(value) is not torch.Tensor:
            return value
        if value.is_meta:
            raise NotCoveredError("a meta tensor that is neither a weight nor an input")
        ghost = self.ghosts[id(value)] = self.tape.given(value)
        self.tape.constants[ghost.value] = (value, self.modules.scope)
        return ghost


class Functions(TorchFunctionMode):
    """Tracks the running torch function."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = FunctionCalls()

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.calls.call(func, args, kwargs or {})


class SizeIndexing(TorchFunctionMode):
    """Rewrites indices and literals that contain open sizes, as torch.export does."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor or func is _INDEX:
            func, args, kwargs = rewritten_for_sizes(func, args, kwargs)
        return func(*args, **kwargs)
