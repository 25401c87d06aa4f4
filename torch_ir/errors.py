"""One tree of errors: every mistake of a user ends in one of these, with one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TorchIRError(Exception):
    """The root of every error that torch_ir raises on purpose."""


class GraphError(TorchIRError):
    """The graph contradicts itself; the message names the place."""


class ShapeError(GraphError):
    """Operators do not go together with the shapes or dtypes that they are given."""


class ExpressionError(TorchIRError):
    """A dimension expression does not parse, or cannot be computed."""


class SerializationError(TorchIRError):
    """A file or record cannot be read or written; `path` is the JSON path of the offender."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class MissingFileError(SerializationError, FileNotFoundError):
    """There is no such file."""


class ExportError(TorchIRError):
    """The model could not be captured."""


class ConversionError(TorchIRError):
    """A captured graph holds something that the IR cannot say."""


class ExecutionError(TorchIRError):
    """The graph could not be run with what it was given."""


class GuardError(ExecutionError):
    """A value that the model decides on, or a size that it makes of data, is not what it was at capture."""


class WeightLoadError(TorchIRError):
    """Weights could not be read, or do not fit the graph."""


class RegistryError(TorchIRError):
    """A name is already taken by a different function."""


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


class WeightWarning(UserWarning):
    """Something about the weights that is harmless, but probably not meant."""


def first_line(error: BaseException) -> str:
    """What another library's error says, in one line; its kind where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A tail for an error message: the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
