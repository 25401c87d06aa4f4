"""Write a graph as an ONNX file, with or without weights, and bind weights to such a file.

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
from torch_ir.ir.graph.given_graph import ExampleInputs, Model, graph_of
from torch_ir.ir.regroup.separate_stacks import without_stacks

if TYPE_CHECKING:
    from torch import Tensor

    from torch_ir.run.weight_files import WeightSource

_OPSETS = range(18, 24)  # supported by torch's exporter
_COMMON = 20  # the lowest with GELU as one node; supported by more runtimes than later ones


def to_onnx(
    ir: IR | Model,
    path: str | os.PathLike[str],
    weights: WeightSource | None = None,
    *,
    opset: int | None = None,
    functions: str = "blocks",
    example_inputs: ExampleInputs | None = None,
    check: bool = True,
) -> None:
    """Write a graph as ONNX, atomically; inputs, outputs and symbolic sizes keep their names.

    Without weights, none is loaded or written: each is an initialiser under its state-dict key, and `bind_onnx` sets
    their values. With weights, computations on weights alone are done now, and weights are stored in the file, or in a
    side file if they exceed 1 MiB. A buffer that the model changes is an optional input, and its new value an
    additional output named `KEY.new`. The default opset is 20, or 23 for bfloat16.

    A function that the graph calls becomes a function of the domain `torch_ir`, and is converted once: repeated blocks,
    with `functions="all"` also fused operators, with `"none"` neither. Other calls are inlined.

    With `check`, where ONNX Runtime is installed, the file is compared with the executor before it is written, with
    random weights if none are given; a difference beyond rounding is an error that names the first node. Graphs that
    draw random numbers, or have more than 20 GFLOPs or 1 GiB of weights or of traffic, are not compared.

    `weights` are a state dict, a model, or the path of a checkpoint. A model in place of the graph is captured with
    `example_inputs`; its weights are written if it is also passed as `weights`.
    """
    _require()
    target = _checked(path)
    ir = graph_of(ir, example_inputs, "to_onnx")
    opset = default_opset(ir) if opset is None else opset
    if opset not in _OPSETS:
        raise ConversionError(f"unsupported opset {opset!r:.20}; expected {_OPSETS[0]} to {_OPSETS[-1]}")
    from torch_ir.ops.neutral_state import NeutralState
    from torch_ir.safety.validate import validate_file
    from torch_ir.targets.onnx.model import onnx_model, settle_weights, weights_of
    from torch_ir.targets.onnx.onnx_weights import save, save_with
    from torch_ir.targets.unchecked_guards import without_guards

    validate_file(ir)
    ir = without_guards(ir, "ONNX")
    with NeutralState(new_on_cpu=True):
        if weights is None:
            ir, values = without_stacks(ir), None
        else:
            from torch_ir.run.binding import bind
            from torch_ir.run.weight_files import weights_from

            ir, values = bind(ir, weights_from(weights))
        model = onnx_model(ir, opset, functions)
        if check and importlib.util.find_spec("onnxruntime") is not None:
            from torch_ir.backends.onnx_check import check_model

            check_model(ir, model, values)
        if values is None:
            save(model, target)
            return
        named = {name: values[keys[0]] for name, keys in weights_of(model).items()}
        settle_weights(model)
        save_with(model, named, target)


def bind_onnx(path: str | os.PathLike[str], weights: Mapping[str, Tensor] | str | os.PathLike[str]) -> None:
    """Bind weights to a file that `to_onnx` wrote without them; it can be bound again.

    A mapping is written to a side file. A .safetensors checkpoint (a file, an index of shards, or a folder) is not
    copied: the file refers to it, so it must be in the same folder or below.
    """
    _require()
    from torch_ir.targets.onnx.onnx_weights import bind_file

    bind_file(_checked(path), weights)


def default_opset(ir: IR) -> int:
    """Return the opset for a graph; for bfloat16, one in which convolutions support it."""
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
