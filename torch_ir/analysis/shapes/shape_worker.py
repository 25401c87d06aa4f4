"""Shape worker: a child process for shape rules that might crash.

torch's shape rules check less than its kernels do: some divide by a size that may be 0, or read a missing operand. The
rules of the operators in `ops.safe_shape_calls` run in this process. Every other rule runs in a forked worker, which
serves one call after another; a rule that crashes it, or takes too long, has no result. The limit is on CPU time, so
that the answer does not depend on what else the machine is doing.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

from torch_ir.analysis.shapes.shape_rules import Made, call_rule
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ops.process_end import accept_signals, signals_deferred
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload

_SECONDS = 5  # of CPU time, for one call
_MOST_WAIT = 300  # seconds for an answer, in case the child neither computes nor answers
_MOST_FAILURES = 3  # calls without an answer, after which an operator is not called again
_BYTES = 1 << 24  # of one answer
_MEMORY = 4 << 30  # that the child may use beyond the memory of this process
_RANK = 1 << 10
_CAN_FORK = hasattr(os, "fork")


class ShapeWorker:
    """A child process that calls shape rules; started at the first call, and again after a crash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipes: tuple[Connection, Connection] | None = None  # requests and replies
        self._process = 0
        self._failures: Counter[str] = Counter()  # by operator

    def call_rule(
        self, operator: OpOverload, tensors: Mapping[str, Made], attrs: Mapping[str, Any]
    ) -> list[Made] | str:
        """Return what `shape_rules.call_rule` does, and an empty string if the child does not answer."""
        if not _CAN_FORK or self._failures[str(operator)] >= _MOST_FAILURES:
            return ""
        question = pickle.dumps((str(operator), dict(tensors), dict(attrs)))
        with self._lock:
            try:
                if self._pipes is None:
                    self._pipes = self._start()
                questions, answers = self._pipes
                questions.send_bytes(question)
                if answers.poll(_MOST_WAIT):
                    return _checked(json.loads(answers.recv_bytes(_BYTES)))
            except (EOFError, OSError, ValueError):  # it crashed, or its answer is malformed
                pass
            self._failures[str(operator)] += 1
            self.stop()
            return ""

    def stop(self) -> None:
        """End the child process, if there is one."""
        if self._pipes is not None:
            self._close()
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)

    def forget(self) -> None:
        """Drop a child process that belongs to the process that this one was forked from."""
        self._lock = threading.Lock()
        self._close()

    def _close(self) -> None:
        for pipe in self._pipes or ():
            pipe.close()
        self._pipes = None

    def _start(self) -> tuple[Connection, Connection]:
        (requests, questions), (answers, replies) = Pipe(duplex=False), Pipe(duplex=False)
        with warnings.catch_warnings(), signals_deferred():
            warnings.simplefilter("ignore", DeprecationWarning)  # about other threads, which the child does not need
            process = os.fork()
            if process == 0:
                try:
                    _serve(requests, replies)
                finally:
                    os._exit(1)
            self._process = process
        requests.close()
        replies.close()
        return questions, answers


def _serve(questions: Connection, answers: Connection) -> None:
    """Serve calls until the request pipe is closed."""
    gc.disable()  # objects belong to the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    accept_signals()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    # open copies of the parent's pipes and sockets would block their readers
    first, second = sorted((questions.fileno(), answers.fileno()))
    for start, stop in ((3, first), (first + 1, second), (second + 1, os.sysconf("SC_OPEN_MAX"))):
        os.closerange(start, stop)
    _limit_memory()
    torch.set_num_threads(1)
    while True:
        try:
            name, tensors, attrs = pickle.loads(questions.recv_bytes())
        except EOFError:
            os._exit(0)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        operator: Any = find_operator(name)
        answer = call_rule(operator, tensors, attrs)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.send_bytes(json.dumps(answer).encode())


def _limit_memory() -> None:
    import resource

    try:
        with open("/proc/self/statm") as statm:
            taken = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return
    most = taken + _MEMORY
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _checked(answer: Any) -> list[Made] | str:
    """Validate an answer of the child, whose memory a rule may have corrupted."""
    if isinstance(answer, str):
        return answer
    try:
        rows = [(tuple(shape), dtype, None if stride is None else tuple(stride)) for shape, dtype, stride in answer]
        if all(dtype in DTYPES and len(shape) < _RANK and _are_sizes(shape, stride) for shape, dtype, stride in rows):
            return rows
    except TypeError:
        pass
    raise ValueError("malformed answer")


def _are_sizes(shape: tuple[Any, ...], stride: tuple[Any, ...] | None) -> bool:
    sizes = shape if stride is None else (*shape, *stride)
    return all(type(size) is int and size >= 0 for size in sizes) and (stride is None or len(stride) == len(shape))


WORKER = ShapeWorker()
if _CAN_FORK:
    os.register_at_fork(after_in_child=WORKER.forget)
