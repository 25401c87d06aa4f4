"""Roads from a graph to numbers: what `bench` runs side by side."""

from __future__ import annotations

import copy
import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.errors import CommandError, MissingExtraError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from torch_ir.ir import IR

Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments and keywords of the model
Action = Callable[[], Any]
ROADS = ("eager", "inductor", "onnxruntime")


def check_roads(names: list[str]) -> None:
    """Refuse a road that is not known, or that nothing here can go."""
    for name in names:
        if name not in ROADS:
            hint = did_you_mean(name, ROADS) or f"; there are {', '.join(ROADS)}"
            raise CommandError(f"there is no road {name!r}{hint}")
    if "onnxruntime" in names:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError("the road onnxruntime", package, "onnx")
    if "inductor" in names:
        _require_compiler()


def _require_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise CommandError("the road inductor needs a C++ compiler, and finds none: install g++ or clang++") from None


def graph_road(ir: IR, weights: Mapping[str, Tensor], call: Call) -> Action:
    """The graph through the executor."""
    from torch_ir.run import IRExecutor

    known = {key for param in ir.params if param.param for key in param.param.keys}
    executor = IRExecutor(ir, {key: value for key, value in weights.items() if key in known})
    return _bound(executor, call)


def road(name: str, ir: IR, weights: Mapping[str, Tensor], call: Call, model: nn.Module | None) -> Action:
    """A graph, or for `eager` the model that it came from, by one of `ROADS`."""
    import torch

    import torch_ir

    if name == "eager" and model is not None:
        return _bound(model, call)
    module = torch_ir.to_torch(ir, weights)
    if name == "onnxruntime":
        return _onnxruntime(module, call)
    return _bound(torch.compile(module) if name == "inductor" else module, call)


def _bound(function: Callable[..., Any], call: Call) -> Action:
    """A call on inputs of its own, which it may write to."""
    args, kwargs = copy.deepcopy(call)
    return lambda: function(*args, **kwargs)


def _onnxruntime(module: nn.Module, call: Call) -> Action:
    """A module exported to ONNX, in a session of ONNX Runtime with as many threads as torch uses."""
    import onnxruntime
    import torch

    from torch_ir.run.bench import tensors_of

    args, kwargs = copy.deepcopy(call)
    with tempfile.TemporaryDirectory() as folder, _silent("torch.onnx"):
        file = Path(folder) / "model.onnx"
        program = torch.onnx.export(module, args, kwargs=kwargs, dynamo=True, verbose=False)
        assert program is not None  # it is, with `dynamo`
        program.save(str(file), external_data=True)  # inside the file, there is room for 2 GB
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    values = [tensor.numpy() for tensor in tensors_of((args, kwargs))]
    feeds = dict(zip((given.name for given in session.get_inputs()), values, strict=True))
    return lambda: [torch.from_numpy(result) for result in session.run(None, feeds)]


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Let a library warn of nothing, and its logger say nothing but errors."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
