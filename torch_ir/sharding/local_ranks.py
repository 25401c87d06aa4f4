"""All ranks of a mesh on this machine: worker processes connected by gloo.

    with LocalRanks(4) as ranks:
        outputs = ranks.run(sharded, (x,), weights)

On a cluster, `torchrun` does the same: see `docs/sharding.md`.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.files.temporary_folders import TemporaryFolder, explained
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.placements import Shard, stored_placement
from torch_ir.processes.line_server import LineServer
from torch_ir.run.executor import IRExecutor, flat_inputs
from torch_ir.run.ranks import joined
from torch_ir.run.weight_files import WeightSource, weights_from
from torch_ir.sharding.rank_process import mesh_of

_LOOPBACKS = ("lo", "lo0")  # on Linux, on macOS
_JOB = "torch_ir.sharding.local_ranks:run_rank"
_MAIN = "torch_ir.sharding.rank_process:main"


class LocalRanks:
    """Local worker processes, one per rank; they end with the `with` block.

    A graph for fewer ranks runs in several groups of them at once.
    """

    def __init__(self, count: int, *, seconds: float = 300.0) -> None:
        if count < 1:
            raise ExecutionError(f"there must be at least 1 rank, not {count}")
        self.count, self.seconds = count, seconds
        self._folder = TemporaryFolder()
        self._runs = 0
        threads = str(max(1, torch.get_num_threads() // count))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, **_loopback()}
        self._servers: list[LineServer] = []
        try:
            for rank in range(count):
                words = str(rank), str(count), str(self._folder.path)
                self._servers.append(LineServer(_MAIN, *words, environment=environment))
        except BaseException:  # such as a limit of processes: those that have started must not stay
            self.close()
            raise

    def __enter__(self) -> LocalRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all ranks; kill them if they never ran a job, as they may still be connecting."""
        if not self._runs:
            self._kill()
        for server in self._servers:
            server.close_input()
        for server in self._servers:
            server.close()
        self._folder.cleanup()

    def run(self, ir: IR, inputs: Sequence[Any], weights: WeightSource) -> tuple[Any, ...]:
        """Run a graph and return its whole outputs; each rank takes its shards of inputs and weights."""
        return whole_outputs(ir, self.run_each(ir, inputs, weights))

    def run_each(self, ir: IR, inputs: Sequence[Any], weights: WeightSource) -> list[list[Any]]:
        """Return the outputs of every rank, in rank order."""
        return [values[: len(ir.graph_outputs)] for values in self.left_by_each(ir, inputs, weights)]

    def left_by_each(self, ir: IR, inputs: Sequence[Any], weights: WeightSource) -> list[list[Any]]:
        """Return the outputs of every rank, then the new values of changed tensors."""
        needed = math.prod(ir.mesh.values())
        if self.count % needed:
            raise ExecutionError(f"the graph needs {needed} ranks, but there are {self.count}")
        values = flat_inputs(ir, tuple(inputs), {})
        return self.ask(_JOB, {"ir": ir.to_json(), "inputs": values, **weights_for(weights)})[:needed]

    def ask(self, job: str, request: Mapping[str, Any]) -> list[Any]:
        """Run a function, given as `module:function`, on the request in every rank, and return the results."""
        if not all(server.is_alive for server in self._servers):
            raise ExecutionError("the rank processes have ended, by an earlier error or by close(); start new ones")
        self._runs += 1
        file = self._folder.path / f"request{self._runs}.pt"
        with explained():
            torch.save({"job": job, **request}, file)
        return [torch.load(answer, weights_only=True) for answer in self._run_all(file)]

    def _run_all(self, request: Path) -> list[Path]:
        """Return the files with the results; the first error ends all ranks, as the others would wait for that one."""
        timer = threading.Timer(self.seconds, self._kill)
        latest = time.monotonic() + self.seconds
        timer.start()
        try:
            with ThreadPoolExecutor(self.count) as pool:
                waiting = {pool.submit(_answer, server, request): rank for rank, server in enumerate(self._servers)}
                try:
                    for done in as_completed(waiting):
                        if "error" in done.result():
                            if time.monotonic() >= latest:
                                late = f"the ranks did not finish within {self.seconds:g} s and were killed"
                                raise ExecutionError(late)
                            raise ExecutionError(f"rank {waiting[done]}: {done.result()['error']}")
                except BaseException:  # also Ctrl-C: the pool waits for the replies of all ranks
                    self._kill()
                    raise
        finally:
            timer.cancel()
        return [Path(done.result()["answer"]) for done in waiting]

    def _kill(self) -> None:
        for server in self._servers:
            server.kill()


def _loopback() -> dict[str, str]:
    """Return the environment that makes gloo listen on the loopback interface only."""
    if sys.platform == "win32":
        return {}
    names = {name for _, name in socket.if_nameindex()}.intersection(_LOOPBACKS)
    return {"GLOO_SOCKET_IFNAME": names.pop()} if names else {}


def _answer(server: LineServer, request: Path) -> dict[str, str]:
    """Send a request to a rank and return its reply."""
    return server.ask(str(request)) or {"error": "the process exited without replying"}


def run_sharded(ir: IR, inputs: Sequence[Any], weights: WeightSource) -> tuple[Any, ...]:
    """Run all ranks of a sharded graph on this machine and return its whole outputs."""
    require_graph(ir, "run_sharded")
    with LocalRanks(math.prod(ir.mesh.values())) as ranks:
        return ranks.run(ir, inputs, weights)


def run_rank(request: Mapping[str, Any]) -> list[Any]:
    """Run one rank for a request of `left_by_each`."""
    ir = IR.from_json(request["ir"])
    executor = IRExecutor(ir, mesh=mesh_of(tuple(ir.mesh.items())))
    if request["path"] is not None:
        executor.load_weights(request["path"])
    else:
        executor.load_weights_from_state_dict(request["weights"])
    pairs = zip(ir.graph_inputs, request["inputs"], strict=True)
    pieces = [
        executor.rank.piece(ir, tensor, value) if isinstance(value, torch.Tensor) else value for tensor, value in pairs
    ]
    outcome = executor.run(pieces)
    return [alone(value) for value in (*outcome.outputs, *outcome.mutations.values())]


def weights_for(weights: WeightSource) -> dict[str, Any]:
    """Return weights as fields of a request: the tensors, or the path of their file."""
    if isinstance(weights, (str, os.PathLike)):
        return {"path": os.path.abspath(weights), "weights": {}}
    return {"path": None, "weights": dict(weights_from(weights))}


def alone(value: Any) -> Any:
    """Copy a tensor, so that it is not a view of a larger one."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def whole_outputs(ir: IR, results: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Assemble the whole outputs from those of every rank, in rank order."""
    columns = zip(*results, strict=True)
    return tuple(whole(ir, tensor, list(values)) for tensor, values in zip(ir.graph_outputs, columns, strict=True))


def whole(ir: IR, tensor: TensorMeta, pieces: list[Any]) -> Any:
    """Assemble a tensor from the shards of all ranks, in rank order: the last axis varies fastest."""
    for size, text in reversed(list(zip(ir.mesh.values(), tensor.placement or [], strict=True))):
        place = stored_placement(text)
        groups = [pieces[at : at + size] for at in range(0, len(pieces), size)]
        pieces = [joined(group, place) if isinstance(place, Shard) else group[0] for group in groups]
    return pieces[0]
