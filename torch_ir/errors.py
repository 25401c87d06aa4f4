"""One tree of errors: every mistake of a user ends in one of these, with one sentence."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable
from enum import Enum

_WORD, _WORDS = 100, 5000  # letters, and words, that are compared


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
    DATA_POINTER = "the model asks for the memory of a tensor"
    UNTRACKED_TENSOR = "the model computes where torch does not trace"
    KEPT_TENSOR = "the model reads a tensor of an earlier capture"
    NO_VALUE = "a tensor without values is to decide"
    ENDLESS_RECURSION = "forward calls itself without end"
    EXIT = "forward ends the process"
    WRONG_INPUTS = "the example inputs are not the arguments of forward"
    BUFFER_CHANGES_FORM = "forward reads a buffer and gives it another shape or dtype"
    MEMORY_REPLACED = "forward replaces the memory of a tensor"
    SEEDED = "forward seeds torch's random numbers"


class TorchIRError(Exception):
    """The root of every error that torch_ir raises on purpose; `cause` is for code that decides on it."""

    def __init__(self, *args: object, cause: Cause = Cause.UNKNOWN) -> None:
        super().__init__(*args)
        self.cause = cause


class RuleError(TorchIRError):
    """A rule of the file format is broken.

    `rule` is its number in docs/format.md (`R8`), `path` the JSON path of the offender, `node` the name of its node
    and `hint` the nearest fix; each is empty where there is none.
    """

    def __init__(self, message: str, path: str = "", *, rule: str = "", node: str = "", hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.path, self.rule, self.node, self.hint = printable(path), rule, node, hint

    def prefix(self, path: str, message: str = "", *, node: str = "") -> None:
        """Say where the error's own path begins, and what comes before its message."""
        self.path = printable(path) + self.path.removeprefix("$")
        self.node = self.node or node
        self.args = (f"{message}{self.args[0]}",)


class GraphError(RuleError):
    """The graph contradicts itself; the message names the place."""


class ReadOnlyError(GraphError, TypeError):
    """A list or dict that is computed was to be changed, or a node copied without its graph; the message says how."""


class ShapeError(GraphError):
    """Operators do not go together with the shapes or dtypes that they are given."""


class ExpressionError(TorchIRError):
    """A dimension expression does not parse, or cannot be computed."""


class SerializationError(RuleError):
    """A file or record cannot be read or written; the message begins with the JSON path of the offender.

    Where `file` is set, the message begins with that.
    """

    file = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self.path, super().__str__())))

    @classmethod
    def of(cls, error: RuleError, outer: str = "") -> SerializationError:
        """The same about a file, where `outer` is the path of what the error's own path begins in."""
        path = f"{outer}{error.path.removeprefix('$')}" if outer else error.path
        found = cls(str(error.args[0]), path, rule=error.rule, node=error.node)
        found.hint = error.hint  # which the message ends with
        return found


class MissingFileError(SerializationError, FileNotFoundError):
    """There is no such file."""


class ClosedPipeError(SerializationError, BrokenPipeError):
    """A file was to be written to stdout, but its reader has closed it."""


class MistakenFileError(SerializationError):
    """The file is no graph; the message says what it is instead, `rule` and `path` where reading it ended."""

    def __str__(self) -> str:
        return str(self.args[0])


class ShardError(TorchIRError):
    """A graph cannot be divided among ranks as the plan says, or a plan says nothing that can be done."""


class PipelineError(TorchIRError):
    """A graph cannot be cut into stages as it is asked, or is no pipeline."""


class ExportError(TorchIRError):
    """The model could not be captured."""


class ConversionError(TorchIRError):
    """A captured graph holds something that the IR cannot say."""


class ExecutionError(TorchIRError):
    """The graph could not be run with what it was given."""


class GuardError(ExecutionError):
    """A value that the model decides on, or a size that it makes of data, is not what it was at capture."""


class WeightLoadError(RuleError):
    """Weights could not be read, or do not fit the graph: rule R14."""

    def __init__(self, message: str) -> None:
        super().__init__(message, rule="R14")


class RegistryError(TorchIRError):
    """A name is taken by a different function, or is that of no operator, argument, pass or class."""


class UnknownOperatorError(RegistryError, ShapeError):
    """A rule makes a node of an operator, or with an argument, that torch does not have."""


class DrawError(TorchIRError):
    """A picture could not be rendered."""


class DeviceError(TorchIRError):
    """The figures of a device cannot be read, or cannot be true."""


class CommandError(TorchIRError):
    """The command line asks for something that cannot be done."""


class MissingExtraError(TorchIRError):
    """An optional package is needed; the message names the extra that brings it."""

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(f"{purpose} needs {package}; install it with: pip install 'torch-ir[{extra}]'")


class CaptureWarning(UserWarning):
    """Something about the captured graph that the user should know."""


class VersionWarning(UserWarning):
    """A file was written with another version of torch, and operators that it names are different here."""


class WeightWarning(UserWarning):
    """Something about the weights that is harmless, but probably not meant."""


class SecurityWarning(UserWarning):
    """A setting of this machine would let other users change what is run; it is not used."""


def first_line(error: BaseException) -> str:
    """What another library's error says, in one line; its kind where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey: controls, line ends and what turns text around as their escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A tail for an error message: the nearest known word, or nothing."""
    hint = suggestion(word, known)
    return f"; {hint}" if hint else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """The hint of an error: the nearest known word, or nothing; a hostile file has many, and long ones."""
    near = difflib.get_close_matches(word[:_WORD], list(itertools.islice(known, _WORDS)), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
