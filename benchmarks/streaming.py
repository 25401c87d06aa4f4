"""Run and verify models whose weights exceed the memory limit, with streamed weights."""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

import torch_ir
from benchmarks.measure import forget_peak, measured_alone, memory, table

SIZES = {"400 MB": (48, 1448), "1.5 GB": (48, 2800)}  # of the checkpoint: layers and their width
ROOM = 150 << 20  # bytes of address space in addition to that after the imports
SHARD = 12  # layers
TASKS = {
    "run, loaded whole": ("whole", None),
    "run, loaded whole, limited": ("whole", ROOM),
    "run, streamed, limited": ("stream", ROOM),
    "verified block by block, limited": ("verify", ROOM),
    "one of each unique block, limited": ("unique", ROOM),
}


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.inner(x)
        return x + hidden.relu()


class Net(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def run(repeats: int = 3) -> str:
    """Return the seconds of a task in a separate process, and its memory growth; median and range."""
    rows = []
    for name, (depth, width) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), depth, width)
            for task, (what, room) in TASKS.items():
                found = [_measured(Path(folder), depth, width, what, room) for _ in range(repeats)]
                rows.append([name, task, f"{room >> 20} MiB" if room else "none", *_cells(found)])
    return table(["checkpoint", "task", "growth limit", "peak memory growth", "time (range)"], rows)


def _write(folder: Path, depth: int, width: int) -> None:
    """Write a sharded checkpoint of layers that differ only in scale."""
    base = torch.randn(width, width, generator=torch.Generator().manual_seed(0)) / width
    placed = {}
    for first in range(0, depth, SHARD):
        state = {f"layers.{index}.inner.weight": base * (1 + index / depth) for index in range(first, first + SHARD)}
        save_file(state, folder / f"{first}.safetensors")
        placed.update(dict.fromkeys(state, f"{first}.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def _measured(folder: Path, depth: int, width: int, what: str, room: int | None) -> dict[str, Any] | None:
    """Return the result of the child process; None if it exceeded the limit."""
    found: dict[str, Any] | None = measured_alone("benchmarks.streaming", folder, depth, width, what, room or 0)
    return found


def _cells(found: list[dict[str, Any] | None]) -> list[str]:
    survived = sorted((item for item in found if item is not None), key=lambda item: item["seconds"])
    if len(survived) < len(found):
        return ["out of memory", f"{len(survived)} of {len(found)} runs completed"]
    seconds, grown = [item["seconds"] for item in survived], max(item["grown"] for item in survived)
    middle = seconds[len(seconds) // 2]
    return [f"{grown / 1e6:,.0f} MB", f"{middle:.2f} s ({seconds[0]:.2f}-{seconds[-1]:.2f})"]


def child(folder: Path, depth: int, width: int, what: str, room: int) -> dict[str, Any]:
    """Run one task with a limit on the address space."""
    torch.set_num_threads(1)  # each further thread takes address space
    with tempfile.TemporaryDirectory() as small:
        _write(Path(small), SHARD, 8)
        _do(*_sides(SHARD, 8), Path(small), torch.ones(4, 8), what)  # triggers lazy imports
    ir, model = _sides(depth, width)
    if room:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room,) * 2)
    forget_peak()
    before, start = memory("VmRSS"), time.perf_counter()
    _do(ir, model, folder, torch.ones(4, width), what)
    return {"seconds": time.perf_counter() - start, "grown": memory("VmHWM") - before}


def _sides(depth: int, width: int) -> tuple[torch_ir.IR, nn.Module]:
    with torch_ir.meta_init():
        model = Net(depth, width).eval()
    return torch_ir.extract_ir(model, (torch.empty(4, width, device="meta"),)), model


def _do(ir: torch_ir.IR, model: nn.Module, folder: Path, x: torch.Tensor, what: str) -> None:
    if what in ("verify", "unique"):
        is_valid, report = torch_ir.verify_blocks(ir, folder, model, (x,), unique=what == "unique")
        if not is_valid:
            raise SystemExit(str(report))
        return
    executor = torch_ir.IRExecutor(ir)
    executor.load_weights(folder, stream=what == "stream")
    executor(x)


if __name__ == "__main__":
    print(json.dumps(child(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))))
