"""The stored files of the format: `python -m tests.format_files` adds those that are missing, and changes none.

A file that was written once must load for ever, so a new version of the format gets a folder of its own.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.graphs import everything
from torch_ir import IR, Target, extract_ir, save_protobuf, write_golden
from torch_ir.ir.json.encode import VERSION

FOLDER = Path(__file__).parent / "data" / f"format_{VERSION}"
INLINE_LIMIT = 64  # so that a small file has a side file


class Layers(nn.Module):
    """Repeated layers, a tied weight, and a constant table."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.layers[0].weight  # type: ignore[assignment]
        self.register_buffer("table", torch.arange(64.0).reshape(16, 4), persistent=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x).relu()
        return {"logits": self.head(x), "table": self.table[: x.shape[0]] + x}


class Counter(nn.Module):
    """A buffer that changes, and two branches that depend on data."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def layers() -> IR:
    return extract_ir(Layers().eval(), (torch.ones(2, 4),), strict=False)


def counter() -> IR:
    return extract_ir(Counter().eval(), (torch.ones(3),), strict=False)


def dynamic() -> IR:
    sizes = ({0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=100)},)
    return extract_ir(nn.Softmax(-1).eval(), (torch.ones(2, 3),), dynamic_shapes=sizes, strict=False)


def lowered(path: Path) -> None:
    npu = Target("npu")
    npu.lowers("aten.linear")(lambda node: {"unit": "gemm", "size": list(node.output.shape), "scale": 0.5})
    npu.lower(layers()).save(path)


def pack(path: Path) -> None:
    torch.manual_seed(0)
    model = Layers().eval()
    write_golden(layers(), model.state_dict(), (torch.ones(2, 4),), path, with_weights=True)


FILES: dict[str, Callable[[Path], Any]] = {
    "everything.json": lambda path: everything().save(path),
    "everything.json.gz": lambda path: everything().save(path),
    "everything.binpb": lambda path: save_protobuf(everything(), path),
    "layers.json": lambda path: layers().save(path, inline_limit=INLINE_LIMIT),
    "layers.json.gz": lambda path: layers().save(path, inline_limit=INLINE_LIMIT),
    "layers.binpb": lambda path: save_protobuf(layers(), path),
    "counter.json": lambda path: counter().save(path),
    "counter.binpb": lambda path: save_protobuf(counter(), path),
    "dynamic.json": lambda path: dynamic().save(path),
    "lowered.binpb": lowered,
    "pack": pack,
}


def main() -> None:
    for name, write in FILES.items():
        if not (FOLDER / name).exists():
            write(FOLDER / name)
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
