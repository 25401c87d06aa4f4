"""Where the jobs run: an `Executor` each, of this machine or of a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch_ir.errors import CommandError, MissingExtraError, did_you_mean, first_line
from torch_ir.sweep.fork_client import end_all

_RETRIES = 3  # for a job whose worker was lost
_LOOPBACK = "127.0.0.1"
_RAY = {"include_dashboard": False, "_node_ip_address": _LOOPBACK}


@dataclass(frozen=True)
class Engine:
    """An executor, how many jobs it carries out at once, and how to close it without waiting."""

    executor: Executor
    workers: int
    close: Callable[[], None]


def find_engine(name: str, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine of a name, with so many workers here, or with those of the cluster at an address."""
    if name not in ENGINES:
        hint = did_you_mean(name, ENGINES) or f"; there are: {', '.join(ENGINES)}"
        raise CommandError(f"there is no engine {name!r}{hint}")
    if address is not None and (name == "local" or workers is not None):
        reason = "the local engine has none" if name == "local" else "its workers are those of the cluster"
        raise CommandError(f"--address is the place of a cluster: {reason}")
    if workers is not None and workers < 1:
        raise CommandError(f"--workers must be at least 1, not {workers}")
    return ENGINES[name](workers or os.cpu_count() or 1, address)


def _local(workers: int, address: str | None) -> Engine:
    """Threads that wait, each for a process of its own."""
    executor = ThreadPoolExecutor(workers, "sweep")

    def close() -> None:
        executor.shutdown(wait=False, cancel_futures=True)
        end_all()
        executor.shutdown(wait=True)

    return Engine(executor, workers, close)


def _dask(workers: int, address: str | None) -> Engine:
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError("the engine dask", "distributed", "dask") from None
    cluster = None
    try:
        if address is None:
            cluster = dask_cluster(workers)
        client = Client(address or cluster, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise CommandError(f"no Dask cluster answers at {address}: {first_line(error)}") from None

    def close() -> None:
        client.close()
        if cluster is not None:
            cluster.close()

    threads = sum(client.nthreads().values())
    return Engine(client.get_executor(retries=_RETRIES), max(threads, 1), close)


def dask_cluster(workers: int, *, processes: bool = True) -> Any:
    """A Dask cluster on this machine; all that it listens on is of the loopback interface, on any free port."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=processes,
        protocol="tcp://",  # its other one asks for the address of this machine in the network
        host=_LOOPBACK,
        silence_logs=logging.CRITICAL,  # what it says when workers are ended, which are rows or our own doing
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": f"{_LOOPBACK}:0"},  # of counters; there is no dashboard
        worker_dashboard_address=f"{_LOOPBACK}:0",
    )


def _ray(workers: int, address: str | None) -> Engine:
    try:
        import ray
    except ImportError:
        raise MissingExtraError("the engine ray", "ray", "ray") from None
    where: dict[str, Any] = {} if address else {"num_cpus": workers, **_RAY}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it reports its use to its makers
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.WARNING, **where)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise CommandError(f"no Ray cluster answers at {address}: {first_line(error)}") from None
    return Engine(RayExecutor(ray), int(ray.cluster_resources().get("CPU", 1)), ray.shutdown)


class RayExecutor(Executor):
    """Ray as an executor."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = self._ray.remote(function).options(max_retries=_RETRIES)
        future: Future[Any] = task.remote(*args, **kwargs).future()
        return future


ENGINES: dict[str, Callable[[int, str | None], Engine]] = {"local": _local, "dask": _dask, "ray": _ray}
