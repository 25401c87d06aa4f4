"""Questions of forward about its inputs that no graph can ask: `x.requires_grad`, `isinstance(x, nn.Parameter)`.

The graph is specialised to the answer at capture. A guard for each question compares the inputs of a run with it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from torch_ir import _version
from torch_ir.capture.instrument import Handler, all_intercepted, set_attribute
from torch_ir.capture.program.provenance import code_line
from torch_ir.capture.state.reached_code import functions_of
from torch_ir.capture.state.tensor_memory import GET_DATA, SET_DATA, data_of, is_asked_by_a_model
from torch_ir.capture.walk import modules
from torch_ir.errors import Cause, ConversionError
from torch_ir.ir import IR, OpNode, Slot
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.ir.graph.io_tree import leaves
from torch_ir.ops.guards import ATTRIBUTES, FIXED_ATTRIBUTE, OWN, answer
from torch_ir.ops.torch_internals import BASE, IS_PARAMETER, VERSION, pytree

_PROPERTIES = ("requires_grad", "is_leaf", "grad_fn", "grad", BASE, VERSION)
_GRADIENTS = ("requires_grad", "is_leaf", "grad_fn", "grad")
_METHODS = ("is_inference", "is_conj", "is_neg", "is_shared", "is_pinned")
_ASKED: dict[Any, str] = {
    **{getattr(torch.Tensor, name).__get__: name for name in _PROPERTIES},
    **{getattr(torch.Tensor, name): name for name in _METHODS},
}
_OURS = (os.path.dirname(_version.__file__) + os.sep, torch.__file__)  # the second is the file name of patches
_LIBRARIES = (_OURS[0], os.path.dirname(torch.__file__) + os.sep)
_PROBES = frozenset(("jax",))  # by which transformers recognises tensors of torchax, a subclass that is refused anyway
_BETWEEN = frozenset(("__torch_function__", "__instancecheck__"))  # frames between the question and who asks


class InputQuestions:
    """The questions of one capture: input and attribute -> the answer, and the line that asks."""

    def __init__(self) -> None:
        self.inputs: dict[int, int] = {}  # id of a tensor that takes the place of an input -> its number
        self.asked: dict[tuple[int, str], tuple[bool | int, str]] = {}

    def note(self, tensor: torch.Tensor, name: str, frame: FrameType | None) -> None:
        number = self.inputs.get(id(tensor))
        if number is not None and (number, name) not in self.asked and (line := _asking_line(frame)):
            if name not in ATTRIBUTES and not name.startswith(OWN):
                raise ConversionError(
                    f"cannot capture {line}: it reads {name!r} of an input, which no graph can know",
                    cause=Cause.INPUT_QUESTION,
                )
            self.asked[number, name] = -1, line  # the guard's own question must not be noted
            try:
                self.asked[number, name] = answer(tensor, name), line
            except BaseException:
                del self.asked[number, name]
                raise

    def guard(self, ir: IR, call: Any) -> None:
        """Insert a guard for each question; refuse the graph if the answer was not that of the example input."""
        examples = pytree.tree_leaves(call)
        for (number, name), (found, line) in self.asked.items():
            if answer(examples[number], name) != found:
                raise ConversionError(
                    f"cannot capture {line}: it reads {name!r} of an input, which a capture does not keep; "
                    "pass a plain tensor as example (x.detach().clone())",
                    cause=Cause.INPUT_QUESTION,
                )
        guard_inputs(ir, self.asked)


class _Current(threading.local):
    questions: InputQuestions | None = None  # of this thread


_current = _Current()


@contextmanager
def input_questions() -> Iterator[InputQuestions]:
    """Note the questions about inputs during a capture."""
    outer, _current.questions = _current.questions, InputQuestions()
    try:
        yield _current.questions
    finally:
        _current.questions = outer


def note_inputs(given: Any) -> None:
    """Note the tensors that take the place of the inputs, nested as the call."""
    if _current.questions is not None:
        found = enumerate(pytree.tree_leaves(given))
        _current.questions.inputs = {id(leaf): number for number, leaf in found if isinstance(leaf, torch.Tensor)}


def set_questions(kind: type[torch.Tensor], refuse: Callable[[torch.Tensor, str], None]) -> None:
    """Make a class of tensors note who reads the properties and calls the methods that are questions.

    `refuse` is called where forward asks for gradients.
    """
    for name in _PROPERTIES:
        setattr(kind, name, _asking(name, refuse))
    for name in _METHODS:
        setattr(kind, name, _asking_method(name))
    setattr(kind, IS_PARAMETER, _asking_for_class())
    kind.__getattr__ = _missing  # type: ignore[attr-defined]  # read by Python


def _missing(tensor: torch.Tensor, name: str) -> Any:
    """Note who reads an attribute that a tensor does not have, which another input may have; raise as Python does."""
    if _current.questions is not None and not name.startswith("__") and name not in _PROBES:
        frame = sys._getframe(1)
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            _current.questions.note(tensor, OWN + name, frame)
    return object.__getattribute__(tensor, name)


def _asking(name: str, refuse: Callable[[torch.Tensor, str], None]) -> Any:
    """Return a property like that of Tensor that notes who reads it, for a class of tensors."""
    original: Any = getattr(torch.Tensor, name)

    def read(tensor: torch.Tensor) -> Any:
        if _current.questions is not None:
            _current.questions.note(tensor, name, sys._getframe(1))
        if name in _GRADIENTS and _asking_line(sys._getframe(1)):
            refuse(tensor, f"forward enables gradients and reads {name!r}")
        return original.__get__(tensor)

    return property(read, original.__set__)


def _asking_method(name: str) -> Any:
    """Return the same for a method."""
    original = getattr(torch.Tensor, name)

    def call(tensor: torch.Tensor, *args: Any) -> Any:
        if _current.questions is not None:
            _current.questions.note(tensor, name, sys._getframe(1))
        return original(tensor, *args)

    return call


def _asking_for_class() -> Any:
    """Return the same for what `isinstance(tensor, nn.Parameter)` reads."""

    def read(tensor: torch.Tensor) -> bool:
        if _current.questions is not None:
            _current.questions.note(tensor, IS_PARAMETER, sys._getframe(1))
        return bool(vars(tensor).get(IS_PARAMETER, False))

    def write(tensor: torch.Tensor, value: bool) -> None:
        vars(tensor)[IS_PARAMETER] = value

    return property(read, write)


class QuestionMode(TorchFunctionMode):
    """Notes questions about tensors of torch's own classes.

    With `data`, `t.data` is `t.detach()`, and assignments to it are refused: a second mode would double the time that
    torch needs for each attribute.
    """

    def __init__(self, data: bool) -> None:
        super().__init__()
        self._asked = {**_ASKED, GET_DATA: "data", SET_DATA: "data"} if data else _ASKED

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = self._asked.get(func)
        if name == "data" and is_asked_by_a_model(sys._getframe(1)):
            return data_of(args[0], is_set=func == SET_DATA)
        if name is not None and name != "data" and _current.questions is not None:
            _current.questions.note(args[0], name, sys._getframe(1))
        return func(*args, **(kwargs or {}))


@contextmanager
def inputs_noted(model: nn.Module) -> Iterator[None]:
    """Register the tensors of the first call of forward as the inputs."""
    began: list[bool] = []

    def begin(_: nn.Module, args: Any, kwargs: Any) -> None:
        if not began:  # else forward calls itself
            began.append(True)
            note_inputs((args, kwargs))

    with model.register_forward_pre_hook(begin, with_kwargs=True):
        yield


@contextmanager
def questions_noted(*, data: bool = False) -> Iterator[None]:
    """Note questions about tensors of torch's own classes; with `data`, let a tracer follow `t.data`."""

    def ask(original: Callable[..., Any], kind: Any, value: Any) -> Any:
        if _current.questions is not None:
            _current.questions.note(value, IS_PARAMETER, sys._getframe(1))
        return original(kind, value)

    def ask_for_memory(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
        if _current.questions is not None:
            _current.questions.note(tensor, "is_shared", sys._getframe(1))
        return original(tensor)

    asked: dict[tuple[Any, str], Handler] = {
        (type(nn.Parameter), "__instancecheck__"): ask,
        (torch.Tensor, "is_shared"): ask_for_memory,
    }
    with all_intercepted(asked), set_attribute(torch.Tensor, "__getattr__", _missing), QuestionMode(data):
        yield


def guard_inputs(ir: IR, asked: Mapping[tuple[int, str], tuple[bool | int, str]]) -> None:
    """Insert guards before all other nodes: (number of an input, attribute) -> the answer, and the line that asks."""
    if not asked:
        return
    names = FreeNames(taken_names(ir))
    slots = [leaf for _, leaf in leaves(ir.input_tree)]
    present = {(node["value"], node["name"]) for node in ir.nodes if node.op_type == FIXED_ATTRIBUTE}
    guards = []
    for (number, name), (found, line) in asked.items():
        slot = slots[number]
        if isinstance(slot, Slot) and (ir.graph_inputs[slot], name) not in present:  # else a constant of the call
            guards.append(
                OpNode(
                    names.free("fixed_attribute"),
                    FIXED_ATTRIBUTE,
                    [ir.graph_inputs[slot]],
                    [],
                    {"name": name, "assumed": found, "place": line},
                    args=["value"],
                )
            )
    ir.nodes[:0] = guards


def questions_of_all(call: Any, names: Iterable[str], line: str) -> dict[tuple[int, str], tuple[bool | int, str]]:
    """Return these questions about every tensor of a call."""
    tensors = [(at, leaf) for at, leaf in enumerate(pytree.tree_leaves(call)) if isinstance(leaf, torch.Tensor)]
    return {(at, name): (ATTRIBUTES[name](leaf), line) for name in names for at, leaf in tensors}


def guard_by_code(model: nn.Module, ir: IR, call: Any) -> None:
    """Guard all inputs against questions that are in the code, for a tracer that interprets it."""
    kinds = dict.fromkeys(map(type, modules(model)))
    codes = dict.fromkeys(function.__code__ for kind in kinds for function in functions_of(kind))
    for code in codes:
        names = [name for name in ATTRIBUTES if name in code.co_names]
        names += [IS_PARAMETER] * ("isinstance" in code.co_names and "Parameter" in code.co_names)
        guard_inputs(ir, questions_of_all(call, names, code_line(code, code.co_firstlineno)))


def _asking_line(frame: FrameType | None) -> str:
    """Return the line that asks, below modes and recorders, if it is the user's; else an empty string."""
    while frame is not None and (frame.f_code.co_name in _BETWEEN or frame.f_code.co_filename.startswith(_OURS)):
        frame = frame.f_back
    return "" if frame is None else code_line(frame.f_code, frame.f_lineno)
