"""Peers of the latency benchmark: each compiles the original model to a callable on given inputs.

Threads are those of torch. None of them sees a graph of ours.
"""

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import torch_export
from torch_ir.run.benchmark import tensors_of

Action = Callable[[], Any]
Inputs = dict[str, Any]


def compiled(model: nn.Module, inputs: Inputs, *, freezing: bool) -> Action:
    """Compile with torch.compile, optionally with weights as constants."""
    made = torch.compile(model, options={"freezing": freezing})  # or reuses the other setting's code
    with torch._inductor.config.patch(freezing=freezing), torch.no_grad():
        made(**inputs)
    return lambda: made(**inputs)


def onnxruntime_of_model(model: nn.Module, inputs: Inputs) -> Action:
    """Export with torch.onnx and load in ONNX Runtime with all optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with tempfile.TemporaryDirectory() as folder, _quiet():
        file = str(Path(folder) / "model.onnx")
        program = torch.onnx.export(model, (), kwargs=inputs, dynamo=True, verbose=False)
        assert program is not None  # always so with `dynamo`
        program.save(file, external_data=True)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    feeds = dict(zip(names, (tensor.numpy() for tensor in tensors_of(inputs)), strict=True))
    return lambda: [torch.from_numpy(result) for result in session.run(None, feeds)]


def openvino_of_model(model: nn.Module, inputs: Inputs) -> Action:
    """Convert torch.export's program with OpenVINO, for these sizes and in float32."""
    import openvino

    with _quiet():
        converted = openvino.convert_model(torch_export(model, inputs))
    values = tensors_of(inputs)
    converted.reshape({index: list(value.shape) for index, value in enumerate(values)})
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    ready = openvino.Core().compile_model(converted, "CPU", settings)
    feeds = [value.numpy() for value in values]
    return lambda: [torch.from_numpy(result) for result in ready(feeds, share_outputs=True).values()]


def executorch_of_model(model: nn.Module, inputs: Inputs) -> Action:
    """Lower to ExecuTorch with XNNPACK."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.extension.pybindings.portable_lib import _threadpool_get_thread_count, _unsafe_reset_threadpool
    from executorch.runtime import Runtime

    if _threadpool_get_thread_count() != torch.get_num_threads():
        _unsafe_reset_threadpool(torch.get_num_threads())
    with _quiet():
        lowered = to_edge_transform_and_lower(torch_export(model, inputs), partitioner=[XnnpackPartitioner()])
        method = Runtime.get().load_program(lowered.to_executorch().buffer).load_method("forward")
    values: list[Tensor] = tensors_of(inputs)
    return lambda: method.execute(values)


def installed() -> dict[str, Callable[[nn.Module, Inputs], Action]]:
    """Return the peers that are installed."""
    found: dict[str, Callable[[nn.Module, Inputs], Action]] = {
        "torch.compile": partial(compiled, freezing=False),
        "torch.compile, freezing": partial(compiled, freezing=True),
    }
    for package, name, peer in (
        ("onnxruntime", "ONNX Runtime", onnxruntime_of_model),
        ("openvino", "OpenVINO", openvino_of_model),
        ("executorch", "ExecuTorch, XNNPACK", executorch_of_model),
    ):
        if importlib.util.find_spec(package) is not None:
            found[name] = peer
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of converters."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
