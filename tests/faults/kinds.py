"""Everything that the package writes, in two versions each: how to save one, and how to recognise it.

What needs torch comes last and imports it when it is first saved, so that the others are saved by small processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch_ir.errors import SerializationError
from torch_ir.ir import IR, OpNode, Param, TensorData, TensorMeta

Save = Callable[[Path, int], object]
Read = Callable[[Path], int]


@dataclass(frozen=True)
class Kind:
    """A kind of file: the name to save it under, how to save version 0 or 1, and how to read which one it is.

    Readers of others open a name twice, or later what lies beside it, and may meet the next file; ours look again.
    """

    name: str
    file: str
    save: Save
    read: Read
    needs_torch: bool = False
    is_read_by_others: bool = False


KINDS: dict[str, Kind] = {}


def _kind(name: str, file: str, read: Read, **facts: bool) -> Callable[[Save], Save]:
    def keep(save: Save) -> Save:
        KINDS[name] = Kind(name, file, save, read, **facts)
        return save

    return keep


@cache
def graph(version: int) -> IR:
    """A graph of one node over a constant that is large enough for a side file."""
    raw = bytes([version + 1]) * (80_000 + version)
    constant = TensorMeta("c_table", (len(raw),), "uint8")
    constant.param = Param(("table",), "constant", TensorData((len(raw),), "uint8", raw))
    out = TensorMeta("neg", (len(raw),), "uint8")
    neg = OpNode("neg", "aten.neg.default", [constant], [out], args=["self"])
    return IR([neg], [], [out], params=[constant], model_name=f"version {version}").check()


def _of_graph(ir: IR) -> int:
    """Which version a graph is, to the last byte of its constant."""
    version = int(ir.model_name.removeprefix("version "))
    assert ir.to_json() == graph(version).to_json()
    return version


def _of_bytes(made: Callable[[int], bytes]) -> Read:
    return lambda path: [made(0), made(1)].index(path.read_bytes())


# -- without torch ----------------------------------------------------------------------------------------------------


@_kind("JSON and side file", "model.json", lambda path: _of_graph(IR.load(path)))
def _pair(path: Path, version: int) -> None:
    graph(version).save(path)


@_kind("JSON", "model.json", lambda path: _of_graph(IR.load(path)))
def _alone(path: Path, version: int) -> None:
    graph(version).save(path, inline_limit=None)


@_kind("gzip and side file", "model.json.gz", lambda path: _of_graph(IR.load(path)))
def _gzip_pair(path: Path, version: int) -> None:
    graph(version).save(path)


def _read_protobuf(path: Path) -> int:
    from torch_ir.formats import load_protobuf

    return _of_graph(load_protobuf(path))


@_kind("protobuf", "model.pb", _read_protobuf)
def _protobuf(path: Path, version: int) -> None:
    from torch_ir.formats import save_protobuf

    save_protobuf(graph(version), path)


def _mermaid(version: int) -> bytes:
    from torch_ir.draw import ir_to_mermaid

    return ir_to_mermaid(graph(version)).encode()


@_kind("picture", "model.mmd", _of_bytes(_mermaid))
def _picture(path: Path, version: int) -> None:
    from torch_ir.draw import render

    render(graph(version), path)


@_kind("report", "report.json", lambda path: int(json.loads(path.read_text())["model_name"].removeprefix("version ")))
def _report(path: Path, version: int) -> None:
    _command("info", str(_stored(path, version)), "--json", "-o", str(path))


def _command(*words: str) -> None:
    """Run a command whose errors propagate."""
    from torch_ir.cli.dispatch import build_parser

    arguments = build_parser().parse_args(words)
    assert arguments.run(arguments) == 0


def _stored(path: Path, version: int) -> Path:
    """A file to read from, beside the folder that is looked at."""
    source = path.parent.parent / f"source_{version}.json"
    if not source.exists():
        graph(version).save(source)
    return source


# -- with torch -------------------------------------------------------------------------------------------------------


@cache
def _lowered(version: int) -> Any:
    from torch_ir.targets import Target

    return Target(f"npu {version}").lower(graph(version))


@_kind("lowered target", "npu.json", lambda path: int(json.loads(path.read_text())["target"][-1]), needs_torch=True)
def _target(path: Path, version: int) -> None:
    _lowered(version).save(path)


@cache
def _source(version: int) -> bytes:
    from torch_ir.targets import to_mlir

    return to_mlir(graph(version)).encode()


@_kind("MLIR", "model.mlir", _of_bytes(_source), needs_torch=True)
def _mlir(path: Path, version: int) -> None:
    from torch_ir.targets import to_mlir

    to_mlir(graph(version), path)


def _read_python(path: Path) -> int:
    names: dict[str, Any] = {"__file__": str(path), "__name__": "net"}
    exec(path.read_text(), names)
    return _of_negated(names["Net"]()()[0])


@_kind("Python and side file", "net.py", _read_python, needs_torch=True, is_read_by_others=True)
def _python(path: Path, version: int) -> None:
    from torch_ir.targets import to_python

    to_python(graph(version), path)


def _read_outputs(path: Path) -> int:
    from safetensors.torch import load_file

    (value,) = load_file(path).values()
    return _of_negated(value)


def _of_negated(value: Any) -> int:
    assert bool((value == value[0]).all())
    return int(-value[0].item() % 256) - 1


@_kind("run outputs", "out.safetensors", _read_outputs, needs_torch=True, is_read_by_others=True)
def _outputs(path: Path, version: int) -> None:
    _command("run", str(_stored(path, version)), "-w", "random", "-o", str(path))


@cache
def _onnx() -> Any:
    """A model with a weight that is large enough for a side file."""
    from torch_ir.targets.onnx.model import onnx_model

    x, out = TensorMeta("x", (1, 300), "float32"), TensorMeta("mm", (1, 1000), "float32")
    weight = TensorMeta("w", (300, 1000), "float32", param=Param(("w",)))
    mm = OpNode("mm", "aten.mm.default", [x, weight], [out], args=["self", "mat2"])
    return onnx_model(IR([mm], [x], [out], params=[weight]).check(), 20)


def _read_onnx(path: Path) -> int:
    import onnx_ir

    held = onnx_ir.load(path).graph.initializers["w"].const_value
    assert held is not None
    values = held.numpy()
    assert (values == values[0, 0]).all()
    return int(values[0, 0]) - 1


@_kind("ONNX and weights", "model.onnx", _read_onnx, needs_torch=True, is_read_by_others=True)
def _onnx_pair(path: Path, version: int) -> None:
    import torch

    from torch_ir.targets.onnx.onnx_weights import save_with

    save_with(_onnx(), {"w": torch.full((300, 1000), version + 1.0)}, path)


def _read_pack(path: Path) -> int:
    from torch_ir.golden.pack import read_pack

    while True:
        pack = read_pack(path)
        try:
            return _of_negated(pack.tensor(pack.values[0]))
        except SerializationError as error:
            if not str(error).endswith("was replaced while it was being read; read it again"):
                raise


@_kind("golden pack", "pack", _read_pack, needs_torch=True)
def _pack(path: Path, version: int) -> None:
    from torch_ir.golden import write_golden

    write_golden(graph(version), {}, (), path)
