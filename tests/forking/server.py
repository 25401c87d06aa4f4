"""Fork server: import torch once, then fork a child for each requested program."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import numpy
import torch

from tests.forking import interpreter
from torch_ir.processes.process_end import end_with_parent

_ENTRIES = {
    "torch-ir": "torch_ir.cli.dispatch", "pytorch-ir": "torch_ir.cli.dispatch", "page": "tests.documents",
    "architectures": "tests.architectures.sweep", "python": "tests.forking.interpreter",
    "torchrun": "torch.distributed.run",
}  # fmt: skip
_PRELOADED = ("torch.export", "transformers.modeling_utils", "onnxscript")
# No effect on the start of Python and torch; if anything else differs, the program starts separately.
_FREE = {
    "_", "COLUMNS", "LINES", "NO_COLOR", "OLDPWD", "PATH", "PWD", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_TESTRUNUID",
    "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PS1", "SHLVL",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",  # which Inductor sets in its process, again before each use
    "CUDA_MODULE_LOADING",  # which torch sets in its process when it begins to use a GPU
    "TF_CPP_MIN_LOG_LEVEL", "TPU_SKIP_MDS_QUERY",  # which JAX sets when it is imported
    "MALLOC_ARENA_MAX", "TERM", "TORCHINDUCTOR_CACHE_DIR", "TORCH_IR_CACHE", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT",
    "GLOO_SOCKET_IFNAME", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "WORLD_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_USE_AGENT_STORE",
}  # fmt: skip
_PATIENCE = 60  # seconds for the request of a client
_WIDE = b"%-20d"  # as many bytes as the client reads: two numbers may arrive together
_THREADS = "OMP_NUM_THREADS"  # a fork can change it, but not from a number to none
# Commands that work without torch, which is worth testing, and `doctor`, which looks at the process.
_LIGHT = {"completion", "doctor", "help"}


@dataclass
class Request:
    """A program to run: its arguments, folder, ignored signals, environment and standard streams."""

    words: list[str]
    folder: str
    ignored: frozenset[int]
    environment: dict[str, str]
    streams: list[int]

    @property
    def is_for_a_fork(self) -> bool:
        if _read_at_start(self.environment) != _STARTED or (
            _THREADS in os.environ and _THREADS not in self.environment
        ):
            return False
        if self.name == "python":
            return interpreter.is_known(self.words[1:], self.folder)
        return (self.words[1:2] or ["help"])[0] not in _LIGHT

    @property
    def name(self) -> str:
        return os.path.basename(self.words[0])

    def take_over(self) -> None:
        """Be the process of this program."""
        for signal_number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            usual = signal.default_int_handler if signal_number == signal.SIGINT else signal.SIG_DFL
            signal.signal(signal_number, signal.SIG_IGN if signal_number in self.ignored else usual)
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]  # a TextIOWrapper
        if self.environment.get(_THREADS) != os.environ.get(_THREADS):
            torch.set_num_threads(int(self.environment[_THREADS]))
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        programs = os.path.dirname(self.words[0])
        sys.argv, sys.path[0], sys.executable = self.words, programs, os.path.join(programs, "python")
        sys.modules["__main__"] = types.ModuleType("__main__")
        numpy.random.seed()
        torch.seed()


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _FREE and name != _THREADS}


_STARTED = _read_at_start(os.environ)  # before preloaded modules change it


def read(connection: socket.socket) -> Request:
    """Receive the request of a connecting program."""
    head, streams, *_ = socket.recv_fds(connection, 8, 3)
    data = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    count, *texts = os.fsdecode(data).split("\0")
    words, (folder, numbers, *variables) = texts[: int(count)], texts[int(count) :]
    ignored = frozenset(map(int, filter(None, numbers.split(","))))
    return Request(words, folder, ignored, dict(text.split("=", 1) for text in variables), streams)


@dataclass
class _Running:
    """A forked program: its process, a descriptor that is readable when it has ended, and its waiting client."""

    process: int
    ended: int
    client: socket.socket

    def finish(self, has_ended: bool) -> None:
        """Report the exit status; a program whose client was killed is killed."""
        if not has_ended:
            os.kill(self.process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        with suppress(OSError):  # the client is gone
            self.client.sendall(_WIDE % status)
        self.close()

    def close(self) -> None:
        os.close(self.ended)
        self.client.close()


def serve(listener: socket.socket) -> Request:
    """Fork a process for each client, and report its exit; returns only in the processes of programs."""
    running: list[_Running] = []
    while True:
        waiting = [source for each in running for source in (each.ended, each.client)]
        ready, *_ = select.select([listener, sys.stdin, *waiting], [], [])
        if sys.stdin in ready:  # no clients are left; forked processes end with this one
            os._exit(0)
        for each in [each for each in running if each.ended in ready or each.client in ready]:
            each.finish(has_ended=each.ended in ready)
            running.remove(each)
        if listener in ready:
            client, _ = listener.accept()
            request = _started(client, running)
            if request is not None:
                listener.close()
                return request


def _started(client: socket.socket, running: list[_Running]) -> Request | None:
    """Fork the process of a program, in which this returns its request; or let the client start the program."""
    client.settimeout(_PATIENCE)
    try:
        request = read(client)
    except (OSError, ValueError):  # the client was killed
        client.close()
        return None
    process = os.fork() if request.is_for_a_fork else None
    if process == 0:
        end_with_parent()
        for each in running:
            each.close()
        client.close()
        return request
    for stream in request.streams:
        os.close(stream)
    if process:
        running.append(_Running(process, os.pidfd_open(process), client))
    with suppress(OSError):  # likewise; then its end is seen above
        client.sendall(_WIDE % (process or 0))
    if not process:
        client.close()
    return None


def _warm_up() -> None:
    """Capture tiny models by every method, so that no child has to import and set up for it."""
    import torch_ir
    from torch_ir import cli
    from torch_ir.cli.dispatch import build_parser
    from torch_ir.llm import extract_llm

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # no fork has the threads of its parent, and would wait for them
    build_parser()  # which imports every verb
    for module in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}."):
        importlib.import_module(module.name)
    for name in torch_ir.__all__:
        getattr(torch_ir, name)
    with warnings.catch_warnings(), torch.device("meta"):
        model, size = torch.nn.Linear(2, 2).eval(), torch.export.Dim("size", max=8)
        ir = torch_ir.extract_ir(model, (torch.ones(2, 2),))
        for capture in ("auto", "export"):
            torch_ir.extract_ir(model, (torch.ones(2, 2),), dynamic_shapes=({0: size},), capture=capture)
    with suppress(ImportError):
        from torch_ir.targets.onnx.model import onnx_model

        onnx_model(ir, opset=20)
    with suppress(ImportError):
        from transformers import LlamaConfig

        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
        extract_llm(LlamaConfig(vocab_size=100, **sizes))  # as in several pages: capture remembers operators by sizes
    torch.set_num_threads(threads)


def _run(entry: types.ModuleType) -> NoReturn:
    """Run a program to its end without interpreter shutdown, which would take longer than most programs."""
    status = 1
    try:
        status = entry.main() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as Python ends, and multiprocessing its children
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    os._exit(status)


def main() -> NoReturn:
    """Serve until standard input ends, and in each child run its program."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal reaches the children as well
    entries = {name: importlib.import_module(module) for name, module in _ENTRIES.items()}
    for module in _PRELOADED:
        with suppress(ImportError):  # an error is raised where it is needed
            importlib.import_module(module)
    _warm_up()
    gc.freeze()  # children share these pages until they are written to
    for each in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        each.atexit = False  # for the end of this process, which has none; thousands, of torch's operators
    request = serve(listener)
    request.take_over()
    _run(entries[request.name])
