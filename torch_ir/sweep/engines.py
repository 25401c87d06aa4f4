"""Engines that run jobs: an `Executor` on this machine or on a cluster."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch_ir.errors import CommandError, MissingExtraError, did_you_mean, first_line
from torch_ir.sweep.fork_client import end_all

_RETRIES = 3  # of a job whose worker was lost
_LOOPBACK = "127.0.0.1"
_RAY_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0, read when Ray is imported: all its servers use loopback


@dataclass(frozen=True)
class Engine:
    """An executor, its number of parallel jobs, and a function that closes it without waiting."""

    executor: Executor
    workers: int
    close: Callable[[], None]


def find_engine(name: str, workers: int | None = None, address: str | None = None) -> Engine:
    """Start the engine of a name, with so many local workers, or connected to the cluster at an address."""
    if name not in ENGINES:
        hint = did_you_mean(name, ENGINES) or f"; expected one of {', '.join(ENGINES)}"
        raise CommandError(f"unknown engine {name!r}{hint}")
    if address is not None and (name == "local" or workers is not None):
        reason = "--engine dask or ray" if name == "local" else "no --workers, as the cluster has its own"
        raise CommandError(f"--address needs {reason}")
    if workers is not None and workers < 1:
        raise CommandError(f"--workers must be at least 1, not {workers}")
    return ENGINES[name](workers or os.cpu_count() or 1, address)


def _local(workers: int, address: str | None) -> Engine:
    """Threads that each wait for a worker process."""
    executor = ThreadPoolExecutor(workers, "sweep")

    def close() -> None:
        executor.shutdown(wait=False, cancel_futures=True)
        end_all()
        executor.shutdown(wait=True)

    return Engine(executor, workers, close)


def _no_cluster(name: str, address: str | None, error: Exception) -> CommandError:
    what = f"cannot start {name} on this machine" if address is None else f"no {name} cluster answers at {address}"
    return CommandError(f"{what}: {first_line(error)}")


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
        raise _no_cluster("Dask", address, error) from None

    def close() -> None:
        client.close()
        if cluster is not None:
            cluster.close()

    threads = sum(client.nthreads().values())
    return Engine(client.get_executor(retries=_RETRIES), max(threads, 1), close)


def dask_cluster(workers: int, *, processes: bool = True) -> Any:
    """Start a Dask cluster that listens only on the loopback interface, on free ports."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=processes,
        protocol="tcp://",  # the default looks up this machine's network address
        host=_LOOPBACK,
        silence_logs=logging.CRITICAL,  # messages about ended workers, which become rows or are intended
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": f"{_LOOPBACK}:0"},  # serves counters only
        worker_dashboard_address=f"{_LOOPBACK}:0",
    )


def _ray(workers: int, address: str | None) -> Engine:
    if address is None:
        os.environ[_RAY_CLUSTERS] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # disable usage reports
    try:
        import ray
    except ImportError:
        raise MissingExtraError("the engine ray", "ray", "ray") from None
    where: dict[str, Any] = {} if address else {"num_cpus": workers, "include_dashboard": False}
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **where)
    except (OSError, ValueError, RuntimeError) as error:
        raise _no_cluster("Ray", address, error) from None
    if terminate is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)  # Ray's handler prints a stack trace
    return Engine(RayExecutor(ray), int(ray.cluster_resources().get("CPU", 1)), ray.shutdown)


class RayExecutor(Executor):
    """Executor interface to Ray."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = self._ray.remote(function).options(max_retries=_RETRIES)
        future: Future[Any] = task.remote(*args, **kwargs).future()
        return future


ENGINES: dict[str, Callable[[int, str | None], Engine]] = {"local": _local, "dask": _dask, "ray": _ray}
