"""Record one run of the original model: every operator call, with the module that made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Union

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from torch_ir.errors import ExecutionError, TorchIRError, first_line
from torch_ir.ops.fast_paths import masks_as_in_eager, plain_attention, uncompiled
from torch_ir.ops.schema import bind, operator_name
from torch_ir.ops.torch_internals import AutoDispatchBelowAutograd, TorchDispatchMode, pytree
from torch_ir.run.seeding import seed_generators
from torch_ir.verify.copies import copied
from torch_ir.verify.model_state import ModelState
from torch_ir.verify.reference_run import Call as Inputs
from torch_ir.verify.reference_run import weights_replaced
from torch_ir.verify.streamed import called_with, stand_ins
from torch_ir.verify.tensor_file import TensorFile, described

Place = tuple[int, Union[int, str]]  # a call, and the index of a result or the name of an argument


@dataclass(frozen=True)
class Call:
    """One operator call of the model: its name, the calling module, and the shapes and dtypes of its results."""

    op_type: str
    module: str
    number: int  # which call of that module it was
    results: tuple[Any, ...]


@dataclass
class ModuleCall:
    """One call of a module: the operator calls inside it, and which of their results it returned."""

    path: str
    number: int
    first: int
    last: int = 0
    results: set[Place] = field(default_factory=set)


@dataclass
class Recording:
    """One run in order; `values` are the requested results and arguments, in the tensor file."""

    calls: list[Call] = field(default_factory=list)
    modules: list[ModuleCall] = field(default_factory=list)  # in the order in which they returned
    values: dict[Place, Any] = field(default_factory=dict)
    output: Any = None  # what the model returned


def record(
    model: nn.Module,
    inputs: Inputs,
    weights: Mapping[str, torch.Tensor],
    wanted: Container[int],
    arguments: Mapping[int, Set[str]],
    file: TensorFile,
    *,
    within: AbstractContextManager[Any] | None = None,
    last: int | None = None,
) -> Recording:
    """Run the model on copies of its inputs and store the results of the `wanted` calls; its state is restored.

    `arguments` names arguments of calls to store as well; `weights` replace some of the model's own. The run is
    `within` a mode that computes the calls, and ends after the `last` call if given; without a mode, the model runs on
    its own parameters.
    """
    call = copied(inputs)
    tensors = {} if within is None else stand_ins(model, weights)
    recorder = _Recorder(wanted, arguments, file, last)
    with ExitStack() as stack:
        stack.enter_context(weights_replaced(model, weights) if within is None else nullcontext())
        stack.enter_context(ModelState(model).restored())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.no_grad())
        stack.enter_context(masks_as_in_eager(list(model.modules())))
        stack.enter_context(plain_attention())
        # record compiled code and control flow call by call; torch never again compiles what it skips here
        stack.enter_context(uncompiled())
        stack.enter_context(_watched(model, recorder))
        # below autograd, composite operators stay whole, as in capture: `linear`, not `t` and `addmm`
        stack.enter_context(AutoDispatchBelowAutograd())
        stack.enter_context(within or nullcontext())
        stack.enter_context(recorder)
        seed_generators(0)
        try:
            if within is None:
                recorder.recording.output = model(*call[0], **call[1])
            else:
                recorder.recording.output = called_with(model, tensors, call)
        except _Enough:
            pass
        except TorchIRError:
            raise
        except Exception as error:  # any error of the model's forward
            raise ExecutionError(f"{type(model).__name__} cannot be recorded: {first_line(error)}") from error
    return recorder.recording


class _Enough(BaseException):
    """Ends a run early; a BaseException, so that models do not catch it."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    supports_higher_order_operators = True

    def __init__(
        self, wanted: Container[int], arguments: Mapping[int, Set[str]], file: TensorFile, last: int | None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.last = last
        self.recording = Recording()
        self.wanted, self.arguments = wanted, arguments
        self.file = file
        self.running: list[ModuleCall] = []
        self.numbers: Counter[str] = Counter()
        self.made: Any = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        index = len(self.recording.calls)
        if index in self.wanted and index in self.arguments:  # before the call, which may write to them
            self._keep_arguments(index, bind(func, args, kwargs or {}))
        outcome = func(*args, **(kwargs or {}))
        results = [leaf for leaf in pytree.tree_leaves(outcome) if leaf is not None]
        caller = self.running[-1] if self.running else ModuleCall("", 0, 0)
        kinds = tuple(map(described, results))
        self.recording.calls.append(Call(operator_name(func), caller.path, caller.number, kinds))
        for place, result in enumerate(results):
            if isinstance(result, torch.Tensor):
                self.made[result] = (index, place)
            if index in self.wanted:
                self.recording.values[index, place] = self.file.put(result)
        if index == self.last:
            raise _Enough
        return outcome

    def _keep_arguments(self, index: int, bound: Mapping[str, Any]) -> None:
        for name in self.arguments[index]:
            argument, _, element = name.partition(".")
            value = bound.get(argument)
            if element:  # of a list, which may be shorter here
                value = value[int(element)] if isinstance(value, (list, tuple)) and int(element) < len(value) else None
            self.recording.values[index, name] = self.file.put(value)

    def enter(self, path: str) -> None:
        self.running.append(ModuleCall(path, self.numbers[path], len(self.recording.calls)))
        self.numbers[path] += 1

    def leave(self, path: str, outcome: Any) -> None:
        while self.running and self.running[-1].path != path:
            self.running.pop()  # left by an error that the model caught
        module = self.running.pop()
        module.last = len(self.recording.calls)
        returned = [leaf for leaf in pytree.tree_leaves(outcome) if isinstance(leaf, torch.Tensor)]
        module.results = {self.made[tensor] for tensor in returned if tensor in self.made}
        self.recording.modules.append(module)


@contextmanager
def _watched(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Notify the recorder when modules start and return."""
    with ExitStack() as stack:
        for path, module in model.named_modules():
            before = module.register_forward_pre_hook(lambda module, args, path=path: recorder.enter(path))
            after = module.register_forward_hook(lambda module, args, out, path=path: recorder.leave(path, out))
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield
