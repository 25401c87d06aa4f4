"""A graph as an ONNX file, with its weights or without, and weights for a file that has none.

to_onnx(ir, "model.onnx")
bind_onnx("model.onnx", "model.safetensors")
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch_ir.errors import ConversionError, MissingExtraError
from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import real_target

if TYPE_CHECKING:
    from torch import Tensor

_OPSETS = range(18, 24)  # what torch's exporter writes itself
_COMMON = 20  # the lowest that says GELU in one node; more runtimes have it than any later one


def to_onnx(
    ir: IR, path: str | os.PathLike[str], weights: Mapping[str, Tensor] | None = None, *, opset: int | None = None
) -> None:
    """Write a graph as ONNX, whole or not at all; inputs, outputs and sizes that vary have their names.

    Without weights, none is loaded or written: each is an initialiser under its state-dict key, and `bind_onnx` gives
    them values. With weights, what depends on them alone is computed here, and they lie in the file itself, or beside
    it where they are more than 1 MiB. A buffer that the model changes is an input that may be left out, and its new
    value is an output after the others, called `KEY.new`. The opset is 20 if none is asked for, and 23 for bfloat16.
    """
    _require()
    target = _checked(path)
    opset = default_opset(ir) if opset is None else opset
    if opset not in _OPSETS:
        raise ConversionError(f"opset is {_OPSETS[0]} to {_OPSETS[-1]}, not {opset!r:.20}")
    from torch_ir.targets.onnx.model import onnx_model, settle_weights, weights_of
    from torch_ir.targets.onnx.onnx_weights import save, save_with

    if weights is None:
        save(onnx_model(ir, opset), target)
        return
    from torch_ir.run.binding import bind

    bound, values = bind(ir, weights)
    model = onnx_model(bound, opset)
    named = {name: values[keys[0]] for name, keys in weights_of(model).items()}
    settle_weights(model)
    save_with(model, named, target)


def bind_onnx(path: str | os.PathLike[str], weights: Mapping[str, Tensor] | str | os.PathLike[str]) -> None:
    """Give the weights of a file that `to_onnx` wrote without any their values; it can be bound again.

    A mapping is written beside the file. Of a .safetensors checkpoint (a file, an index of shards, or a folder) nothing
    is copied: the file points into it, so that it must lie in the same folder or below.
    """
    _require()
    from torch_ir.targets.onnx.onnx_weights import bind_file

    bind_file(_checked(path), weights)


def default_opset(ir: IR) -> int:
    """The version of ONNX's operators that says the graph; for bfloat16, one in which convolutions take it."""
    dtypes = {tensor.dtype for node in ir.all_nodes() for tensor in (*node.inputs, *node.outputs)}
    return _OPSETS[-1] if "bfloat16" in dtypes else _COMMON


def _require() -> None:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("writing ONNX", package, "onnx")


def _checked(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix != ".onnx":
        raise ConversionError(f"{target} must end in .onnx")
    return real_target(target)
