"""Find a model by name: determine its kind, or suggest the nearest known name."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from torch_ir.cli.models.config import find_config, model_types
from torch_ir.cli.models.factory import find_factory
from torch_ir.cli.models.model_kinds import CODE, GRAPHS, PROGRAM, TIMM, TRANSFORMERS, did_you_mean_file, is_config
from torch_ir.cli.models.model_settings import split_settings
from torch_ir.cli.models.own_code import refuse_foreign_name
from torch_ir.cli.models.source import Source
from torch_ir.cli.models.timm import find_timm, is_of_timm, names_of_timm
from torch_ir.errors import CommandError, did_you_mean, first_line

_SPELLINGS = "write it as net.py:Net, package.module:Class, hf:llama, timm:resnet50 or model.pt2"
_USAGE = "the class that weights belong to is captured: torch-ir extract net.py:Net --input ... --weights"


def find_model(text: str, *, own_only: bool = False) -> Source:
    """Return the model that a text names; its code is imported, but the model is not built yet.

    With `own_only`, code that is not the user's own is rejected: the text comes from a list, not from the user.
    """
    if own_only:
        refuse_foreign_name(text)
    if text.endswith(PROGRAM):
        return _find_program(text)
    if is_config(text):
        return find_config(text)
    if text.startswith(TIMM):
        return find_timm(text)
    name = split_settings(text)[0]
    return find_factory(text, own_only=own_only) if ":" in name or name.endswith(CODE) else _find_bare(text, name)


def _what_file(path: Path) -> str:
    """Return what a file that is not a model contains, and how it is used."""
    if path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json"):
        return f"holds weights, not a model; {_USAGE} {path}"
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        return f"{_what_checkpoint(path)}, not a model that can be captured; {_USAGE} FILE.pt"
    if path.suffix == ".onnx":
        return "is an ONNX file; torch-ir captures PyTorch models, and writes ONNX"
    if path.name.endswith(GRAPHS):
        return "is a graph file already; see `torch-ir info`"
    return f"is not a model; {_SPELLINGS}"


def _what_checkpoint(path: Path) -> str:
    """Distinguish weights from TorchScript and pickled modules by the archive; nothing is unpickled."""
    if not zipfile.is_zipfile(path):
        return "is a file of torch.save in the old format, or something else"
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            data = next((name for name in names if name.endswith("data.pkl")), None)
            head = archive.open(data).read(1 << 16) if data else b""
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError):  # of an encrypted or unknown kind, too
        return "is a zip archive that cannot be read"
    if any(name.endswith("constants.pkl") for name in names):
        return "is TorchScript"
    if b"torch.nn.modules" in head or b"__main__" in head:
        return "is a pickled module, which runs code when it is loaded"
    return "holds weights (a state dict)" if data else "is a zip archive"


def _find_bare(text: str, name: str) -> Source:
    """Return a model by its bare name, from transformers or timm."""
    types = model_types()
    if name in types:
        return find_config(f"{TRANSFORMERS}{text}")
    if is_of_timm(name):
        return find_timm(text)
    if (path := Path(name)).is_file():
        raise CommandError(f"{name} {_what_file(path)}")
    if path.is_dir():
        raise CommandError(
            f"the folder {name} has no config.json, so it is not a model of transformers; {_USAGE} {name}"
        )
    hint = did_you_mean_file(name) or did_you_mean(name, [*types, *names_of_timm()])
    raise CommandError(f"{name!r} is neither a file nor a model{hint or f'; {_SPELLINGS}'}")


def _find_program(text: str) -> Source:
    """Load an exported program; torch unpickles it, so the file must come from a trusted source."""
    if not Path(text).is_file():
        raise CommandError(f"no such file: {text}")
    import torch

    from torch_ir.capture.quiet import quiet

    try:
        with quiet():
            program = torch.export.load(text)
    except Exception as error:  # torch raises errors of any type for a damaged file
        raise CommandError(f"cannot read {text} as an exported program: {first_line(error)}") from None
    return Source(text, program.module, program)
