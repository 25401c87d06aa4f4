"""The checks of `torch-ir doctor`, each run in a separate process.

A check returns its findings in a few words, or raises an exception.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.errors import first_line, install_command

if TYPE_CHECKING:
    from torch_ir.ir import IR

_DISTRIBUTIONS = {"google": "protobuf"}  # modules whose name is not that of their package


@dataclass(frozen=True)
class Checkup:
    """A check, the command that fixes a failure, and whether torch_ir needs it to work at all."""

    name: str
    check: Callable[[], str]
    fix: str = ""
    is_core: bool = False


def _python() -> str:
    import platform

    return f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"


def _torch() -> str:
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{torch.__version__}, {torch.get_num_threads()} threads, {', '.join(devices) or 'no GPU'}"


def _torch_ir() -> str:
    """Capture, run and verify a small model."""
    import torch

    import torch_ir

    model, example = torch.nn.Linear(2, 2), torch.ones(1, 2)
    ir = torch_ir.extract_ir(model, (example,), strict=False)
    good, report = torch_ir.verify_ir_with_state_dict(ir, model.state_dict(), model, (example,))
    if not good:
        raise RuntimeError(str(report))
    return f"{torch_ir.__version__}, captured, ran and verified a small model"


def _installation() -> str:
    """Detect another distribution with a package of the same name: the two overwrite each other's files."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        other = version("pytorch-ir")
    except PackageNotFoundError:
        return "no other distribution contains a package torch_ir"
    raise RuntimeError(f"pytorch-ir {other} is also installed and contains a package of the same name")


def _cache() -> str:
    import tempfile

    from torch_ir.ir.files.cache_folder import cache_folder

    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"writable")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{folder}, writable, {size:,} bytes"


def _backends() -> str:
    from torch_ir.backends import installed_backends

    return f"ready: {', '.join(installed_backends())}"


def _safetensors() -> str:
    import numpy
    import safetensors
    from safetensors.numpy import load, save

    if load(save({"x": numpy.arange(3)}))["x"].tolist() != [0, 1, 2]:
        raise RuntimeError("the round trip changed the data")
    return f"safetensors {safetensors.__version__}, numpy {numpy.__version__}"


def _gguf() -> str:
    from importlib.metadata import version

    import numpy
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    blocks = quantize(numpy.full(32, 127.0, numpy.float32), GGMLQuantizationType.Q8_0)
    if dequantize(blocks, GGMLQuantizationType.Q8_0).tolist() != [127.0] * 32:
        raise RuntimeError("a block of equal numbers is not restored")
    return f"gguf {version('gguf')}"


def _draw() -> str:
    import tempfile
    from pathlib import Path

    import pygraphviz

    from torch_ir.draw import render

    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "a.png"
        render(_small(), picture)
        size = picture.stat().st_size
    return f"pygraphviz {pygraphviz.__version__}, drew a picture of {size:,} bytes"


def _protobuf() -> str:
    from google.protobuf import __version__

    from torch_ir.formats.protobuf import from_protobuf, to_protobuf

    from_protobuf(to_protobuf(_small()))
    return f"protobuf {__version__}, wrote and read a graph"


def _onnx() -> str:
    import onnx
    import onnxruntime
    import onnxscript

    providers = ", ".join(name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers())
    versions = f"onnx {onnx.__version__}, onnxscript {onnxscript.__version__}, onnxruntime {onnxruntime.__version__}"
    return f"{versions} ({providers})"


def _mlir() -> str:
    from importlib.metadata import version

    import iree.compiler
    import iree.runtime

    drivers = ", ".join(iree.runtime.query_available_drivers())
    return f"iree-base-compiler {version('iree-base-compiler')} ({drivers})"


def _stablehlo() -> str:
    from importlib.metadata import version

    import jax.extend

    backend = jax.extend.backend.get_backend("cpu")
    return f"jax {version('jax')}, jaxlib {version('jaxlib')} ({backend.platform})"


def _openvino() -> str:
    from torch_ir.targets.openvino_package import import_openvino

    openvino = import_openvino()
    return f"openvino {openvino.__version__} ({', '.join(openvino.Core().available_devices)})"


def _transformers() -> str:
    import transformers

    transformers.AutoConfig.for_model("gpt2")
    return f"transformers {transformers.__version__}, made a configuration"


def _diffusers() -> str:
    import diffusers

    scheduler: Any = diffusers.DDIMScheduler(num_train_timesteps=4)
    scheduler.set_timesteps(2)
    if len(scheduler.timesteps) != 2:
        raise RuntimeError("a scheduler has other steps than asked for")
    return f"diffusers {diffusers.__version__}"


def _timm() -> str:
    from importlib import import_module

    timm = import_module("timm")
    return f"timm {timm.__version__}, {len(timm.list_models())} models"


def _dask() -> str:
    from distributed import Client, __version__

    from torch_ir.sweep.engines import dask_cluster

    with dask_cluster(1, processes=False) as cluster, Client(cluster) as client:
        if client.submit(abs, -1).result() != 1:
            raise RuntimeError("a task returned a wrong result")
    return f"distributed {__version__}, ran a task"


def _ray() -> str:
    import ray

    return f"ray {ray.__version__}"  # starting it takes longer than all other checks together


def _small() -> IR:
    from torch_ir.ir import IR, OpNode, TensorMeta

    x, y = TensorMeta("x", (1,), "float32"), TensorMeta("y", (1,), "float32")
    return IR([OpNode("y", "aten.relu.default", [x], [y])], [x], [y], [])


def _extra(name: str, check: Callable[[], str]) -> Checkup:
    return Checkup(name, check, install_command(name))


def _reinstall() -> str:
    """Return the command that installs this package again, from the folder or file it was installed from."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        source = json.loads(distribution("torch-ir").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        source = {"url": Path(__file__).parents[3].as_uri(), "dir_info": {"editable": True}}
    option = "-e " if source.get("dir_info", {}).get("editable") else ""
    return f"pip install --force-reinstall --no-deps {option}{shlex.quote(source.get('url', 'torch-ir'))}"


CHECKUPS = {
    checkup.name: checkup
    for checkup in (
        Checkup("python", _python, is_core=True),
        Checkup("torch", _torch, "pip install torch", is_core=True),
        Checkup("torch_ir", _torch_ir, _reinstall(), is_core=True),
        Checkup("installation", _installation, f"pip uninstall pytorch-ir; {_reinstall()}"),
        Checkup("cache", _cache, "set TORCH_IR_CACHE to a folder that can be written"),
        Checkup("backends", _backends),
        _extra("safetensors", _safetensors),
        _extra("gguf", _gguf),
        _extra("draw", _draw),
        _extra("protobuf", _protobuf),
        _extra("onnx", _onnx),
        _extra("mlir", _mlir),
        _extra("stablehlo", _stablehlo),
        _extra("openvino", _openvino),
        _extra("transformers", _transformers),
        _extra("diffusers", _diffusers),
        _extra("timm", _timm),
        _extra("dask", _dask),
        _extra("ray", _ray),
    )
}


def main(name: str) -> None:
    """Run one check and print its result as a line of JSON."""
    try:
        state, detail = "ok", CHECKUPS[name].check()
    except ModuleNotFoundError as error:
        name = str(error.name or error)
        state, detail = "missing", f"{_DISTRIBUTIONS.get(name, name)} is not installed"
    except Exception as error:
        state, detail = "broken", f"{type(error).__name__}: {first_line(error)}"
    print(f"\n{json.dumps([state, detail])}", flush=True)
    os._exit(0)  # some libraries crash at exit, which does not matter here
