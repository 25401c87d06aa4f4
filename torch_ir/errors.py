"""The error classes: every user mistake raises one of these, with a one-sentence message."""

from __future__ import annotations

import difflib
import itertools
import os
import shlex
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

_WORD, _WORDS = 100, 5000  # limits of close matches: characters of a word, and candidates
# What code over the arguments of a node raises where an operator without shape rules has arguments of any kind.
INVALID_ARGUMENTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Cause(Enum):
    """Why a model could not be captured, where the next step of capture or the remedy depends on it."""

    UNKNOWN = "no known cause"
    BRANCH_ON_DATA = "Python branches on a value that only the data decides"
    NUMBER_FROM_DATA = "Python needs a number that only the data decides"
    SIZE_FROM_DATA = "the size of a result depends on the data"
    SIZE_CANNOT_VARY = "a size cannot vary as asked"
    UNKNOWN_RESULT = "the model returns an object that is not made of tensors"
    NUMPY = "the model computes with NumPy"
    NO_SHAPE_RULE = "an operator has no shape rule"
    DATA_POINTER = "the model reads the memory of a tensor"
    UNTRACKED_TENSOR = "the model computes where torch does not trace"
    KEPT_TENSOR = "the model reads a tensor of an earlier capture"
    NO_VALUE = "a tensor without values is to decide"
    ENDLESS_RECURSION = "forward calls itself without end"
    EXIT = "forward ends the process"
    WRONG_INPUTS = "the example inputs are not the arguments of forward"
    BUFFER_CHANGES_FORM = "forward reads a buffer and assigns a tensor of another shape or dtype to it"
    MEMORY_REPLACED = "forward replaces the memory of a tensor"
    INPUT_QUESTION = "forward reads what a capture does not keep of an input"
    SEEDED = "forward seeds torch's random numbers"


class TorchIRError(Exception):
    """Base class of torch_ir's errors; code that branches on an error reads its `cause`."""

    def __init__(self, *args: object, cause: Cause = Cause.UNKNOWN) -> None:
        super().__init__(*args)
        self.cause = cause


class RuleError(TorchIRError):
    """A rule of the file format is violated.

    `rule` is its number in docs/format.md (`R8`), `path` the JSON path of the violation, `node` the name of its node
    and `hint` the nearest fix; each is empty where there is none.
    """

    def __init__(self, message: str, path: str = "", *, rule: str = "", node: str = "", hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.path, self.rule, self.node, self.hint = printable(path), rule, node, hint

    def prefix(self, path: str, message: str = "", *, node: str = "") -> None:
        """Prepend to the error's path and to its message."""
        self.path = printable(path) + self.path.removeprefix("$")
        self.node = self.node or node
        self.args = (f"{message}{self.args[0]}",)


class GraphError(RuleError):
    """The graph violates an invariant; the message names the place."""


class ReadOnlyError(GraphError, TypeError):
    """An attempt to modify a computed list or dict, or to copy a node without its graph; the message names a fix."""


class ShapeError(GraphError):
    """An operator does not accept the shapes or dtypes of its inputs."""


class ExpressionError(TorchIRError):
    """A dimension expression does not parse, or cannot be evaluated."""


class SerializationError(RuleError):
    """A file or record cannot be read or written; the message begins with the file, if set, and the JSON path."""

    file = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self.path, super().__str__())))

    @classmethod
    def of(cls, error: RuleError, outer: str = "") -> SerializationError:
        """Convert an error about a graph to one about a file; `outer` is prepended to its path."""
        path = f"{outer}{error.path.removeprefix('$')}" if outer else error.path
        found = cls(str(error.args[0]), path, rule=error.rule, node=error.node)
        found.hint = error.hint  # already at the end of the message
        return found


class MissingFileError(SerializationError, FileNotFoundError):
    """There is no such file."""


class ClosedPipeError(SerializationError, BrokenPipeError):
    """The reader of stdout closed the pipe before the file was written."""


class MistakenFileError(SerializationError):
    """The file is not a graph; the message says what it is, `rule` and `path` where reading it failed."""

    def __str__(self) -> str:
        return str(self.args[0])


class LimitError(SerializationError):
    """Analysing a file takes more time or memory than its `Limits` allow."""


class ShardError(TorchIRError):
    """A graph cannot be sharded according to the plan, or the plan is invalid."""


class QuantizationError(TorchIRError):
    """A recipe is invalid, or a layer cannot be quantised as it says."""


class PipelineError(TorchIRError):
    """A graph cannot be split into the requested stages, or is not a pipeline."""


class PlanError(TorchIRError):
    """No plan fits the devices, or a plan file is invalid."""


class ExportError(TorchIRError):
    """The model could not be captured."""


class ConversionError(TorchIRError):
    """A captured graph contains something that the IR cannot represent."""


class UnsupportedOperatorsError(ConversionError):
    """A target cannot express some operators of a graph; `missing` lists them, those with most nodes first."""

    def __init__(self, message: str, missing: Sequence[Any]) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class ExecutionError(TorchIRError):
    """The graph could not be run with the given inputs and weights; `node` is the one that failed, if one did."""

    def __init__(self, *args: object, node: Any = None) -> None:
        super().__init__(*args)
        self.node = node


class GuardError(ExecutionError):
    """A value that the model branches on, or a data-dependent size, differs from capture; `place` is its line."""

    def __init__(self, *args: object, place: str = "") -> None:
        super().__init__(*args)
        self.place = place


class WeightLoadError(RuleError):
    """Weights could not be read, or do not fit the graph: rule R14."""

    def __init__(self, message: str) -> None:
        super().__init__(message, rule="R14")


class RegistryError(TorchIRError):
    """A name is registered for a different function, or is not an operator, argument, pass or class."""


class UnknownOperatorError(RegistryError, ShapeError):
    """A rule creates a node with an operator or argument that torch does not have."""


class DrawError(TorchIRError):
    """A picture could not be rendered."""


class DeviceError(TorchIRError):
    """The figures of a device cannot be read, or are impossible."""


class CommandError(TorchIRError):
    """The arguments of the command line are invalid or cannot be carried out."""


class ArgumentError(TorchIRError, TypeError):
    """An argument is not of the type that a function takes, such as a model for a graph; the message names the fix."""


class MissingExtraError(TorchIRError):
    """An optional package is missing; the message names the extra that installs it."""

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(f"{purpose} needs {package}; install it with: {install_command(extra)}")


class CaptureWarning(UserWarning):
    """Something about the captured graph that the user should know."""


class VersionWarning(UserWarning):
    """A file was written with another version of torch, whose operators differ from the installed ones."""


class BackendWarning(UserWarning):
    """A back end was never compared with torch: in this version, on this device, or for a graph that cannot be run."""


class WeightWarning(UserWarning):
    """Something about the weights that is harmless, but probably unintended."""


class SecurityWarning(UserWarning):
    """A setting of this machine would let other users change the code that runs; the setting is ignored."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package, which may run from a checkout without installation."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    try:
        distribution("torch-ir")  # pip takes the extras of what is installed
        name = "torch-ir"
    except PackageNotFoundError:
        name = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return f"pip install {shlex.quote(f'{name}[{extra}]')}"


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, two if it ends in a colon; without any, the class name."""
    first, _, rest = str(error).strip().partition("\n")
    more = rest.strip().partition("\n")[0] if first.endswith(":") else ""
    return f"{first} {more}".rstrip() or type(error).__name__


def printable(text: str) -> str:
    """Escape control characters, line ends and bidirectional overrides, so that a terminal only displays the text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many others there are: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return an error message suffix with the nearest known word, or an empty string."""
    hint = suggestion(word, known)
    return f"; {hint}" if hint else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return an error hint with the nearest known word, or ""; bounded, as a hostile file may have many long words."""
    near = difflib.get_close_matches(word[:_WORD], list(itertools.islice(known, _WORDS)), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
