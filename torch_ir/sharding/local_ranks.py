"""All ranks of a mesh on this machine: processes that wait for graphs, joined by gloo.

    with LocalRanks(4) as ranks:
        outputs = ranks.run(sharded, (x,), weights)

What a cluster does with `torchrun` is the same: see `docs/sharding.md`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.placements import Shard, parse
from torch_ir.run.executor import flat_inputs
from torch_ir.run.ranks import joined

_START = "import sys; sys.path[:] = sys.argv[4:]; from torch_ir.sharding.rank_process import main; main()"
Weights = Mapping[str, torch.Tensor] | str | os.PathLike[str]


class LocalRanks:
    """Processes of this machine, one per rank; they end with the `with` block.

    A graph for fewer ranks is run by several groups of them at once.
    """

    def __init__(self, count: int, *, seconds: float = 300.0) -> None:
        self.count, self.seconds = count, seconds
        self._folder = tempfile.TemporaryDirectory(prefix="torch_ir-")
        self._runs = 0
        paths = [os.path.abspath(path) for path in sys.path]
        threads = str(max(1, torch.get_num_threads() // count))
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", _START, str(rank), str(count), self._folder.name, *paths],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": threads},
                text=True,
            )
            for rank in range(count)
        ]

    def __enter__(self) -> LocalRanks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all ranks."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()  # type: ignore[union-attr]  # it is a pipe
        self._folder.cleanup()

    def run(self, ir: IR, inputs: Sequence[Any], weights: Weights) -> tuple[Any, ...]:
        """The whole outputs of one run; each rank takes its pieces of whole inputs and weights."""
        return whole_outputs(ir, self.run_each(ir, inputs, weights))

    def run_each(self, ir: IR, inputs: Sequence[Any], weights: Weights) -> list[list[Any]]:
        """What every rank gives, in the order of their numbers."""
        needed = math.prod(ir.mesh.values())
        if self.count % needed:
            raise ExecutionError(f"the graph is for {needed} ranks, but there are {self.count}")
        self._runs += 1
        request = Path(self._folder.name, f"request{self._runs}.pt")
        path = os.path.abspath(weights) if isinstance(weights, (str, os.PathLike)) else None
        torch.save(
            {
                "ir": ir.to_json(),
                "inputs": flat_inputs(ir, tuple(inputs), {}),
                "path": path,
                "weights": dict(weights) if isinstance(weights, Mapping) else {},
            },
            request,
        )
        replies = self._asked(request)
        return [torch.load(reply, weights_only=True) for reply in replies[:needed]]

    def _asked(self, request: Path) -> list[Path]:
        """Where the ranks put their outputs; the first error ends them all, as the others would wait for that rank."""
        timer = threading.Timer(self.seconds, self._kill)
        timer.start()
        try:
            with ThreadPoolExecutor(self.count) as pool:
                waiting = {pool.submit(_answer, process, request): rank for rank, process in enumerate(self._processes)}
                for done in as_completed(waiting):
                    if "error" in done.result():
                        self._kill()
                        raise ExecutionError(f"rank {waiting[done]}: {done.result()['error']}")
        finally:
            timer.cancel()
        return [Path(done.result()["outputs"]) for done in waiting]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def _answer(process: subprocess.Popen[str], request: Path) -> dict[str, str]:
    """What a rank says to a request."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        print(request, file=process.stdin, flush=True)
        reply = process.stdout.readline()
    except OSError:
        reply = ""
    return json.loads(reply) if reply else {"error": "it ended without a word"}


def run_sharded(ir: IR, inputs: Sequence[Any], weights: Weights) -> tuple[Any, ...]:
    """The whole outputs of a sharded graph, all ranks of which run on this machine."""
    with LocalRanks(math.prod(ir.mesh.values())) as ranks:
        return ranks.run(ir, inputs, weights)


def whole_outputs(ir: IR, results: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The whole outputs, from those of every rank in the order of their numbers."""
    columns = zip(*results, strict=True)
    return tuple(_whole(ir, tensor, list(values)) for tensor, values in zip(ir.graph_outputs, columns, strict=True))


def _whole(ir: IR, tensor: TensorMeta, pieces: list[Any]) -> Any:
    """An output from what the ranks have of it, in the order of their numbers: the last axis counts fastest."""
    for size, text in reversed(list(zip(ir.mesh.values(), tensor.placement or [], strict=True))):
        place = parse(text)
        groups = [pieces[at : at + size] for at in range(0, len(pieces), size)]
        pieces = [joined(group, place) if isinstance(place, Shard) else group[0] for group in groups]
    return pieces[0]
