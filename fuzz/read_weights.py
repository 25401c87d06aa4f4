"""Any bytes opened as a .safetensors file: rejected, or the same tensors that the library reads."""

from pathlib import Path

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import save

from tests.damage.subject import new_folder
from torch_ir.errors import WeightLoadError
from torch_ir.run.stored import StoredTensor, stored_tensors

_FOLDER = new_folder()


def seeds() -> list[bytes]:
    x = torch.arange(4.0)
    return [
        save({"x": x}),
        save({"first.weight": x.reshape(2, 2).half(), "mask": x > 1, "scale": torch.tensor(0.5)}, {"format": "pt"}),
        save({"empty": torch.empty(0, 3), "bytes": torch.arange(3, dtype=torch.uint8)}),
        save({}),
    ]


def check(data: bytes) -> None:
    path = Path(_FOLDER.name) / "weights.safetensors"
    path.write_bytes(data)
    try:
        found = stored_tensors(path)
    except WeightLoadError:
        return
    ours = {name: (list(stored.shape), _raw(stored)) for name, stored in found.items()}
    try:
        theirs = {name: (facts["shape"], bytes(facts["data"])) for name, facts in deserialize(data)}
    except SafetensorError:
        return
    assert ours == theirs


def _raw(stored: StoredTensor) -> bytes:
    return bytes(stored.load().reshape(-1).view(torch.uint8).numpy())
