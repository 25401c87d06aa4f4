"""Shape worker: a child process for shape rules that might crash, and for decompositions of untrusted graphs.

torch's shape rules check less than its kernels do: some divide by a size that may be 0, or read a missing operand. The
rules of the operators in `ops.safe_shape_calls` run in this process. Every other rule runs in a forked worker, which
serves one call after another; a rule that crashes it, or takes too long, has no result. The limit is on CPU time, so
that the answer does not depend on what else the machine is doing. Decompositions call many rules, one after the other.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from torch_ir.analysis.shapes.shape_rules import Made, call_rule
from torch_ir.errors import SerializationError
from torch_ir.ir.checks.work import current_work
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload
from torch_ir.processes.forked_child import CAN_FORK, ForkedChild
from torch_ir.processes.resource_limits import limit_resources

_SECONDS = 5  # of CPU time, for one call of a rule
_LEAST = 0.1  # beyond what is allowed, so that it is exceeded
_MOST_WAIT = 300  # seconds for an answer, in case the child neither computes nor answers
_MOST_FAILURES = 3  # calls without an answer, after which an operator is not called again
_BYTES = 1 << 26  # of one answer
_MEMORY = 3 << 30  # that the child may use beyond the memory of this process
_RANK = 1 << 10
T = TypeVar("T")


class ShapeWorker:
    """A child process that calls shape rules; started at the first call, and again after a crash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: ForkedChild | None = None
        self._failures: Counter[str] = Counter()  # by operator

    def call_rule(
        self, operator: OpOverload, tensors: Mapping[str, Made], attrs: Mapping[str, Any]
    ) -> list[Made] | str:
        """Return what `shape_rules.call_rule` does, and an empty string if the child does not answer."""
        found = self.ask(str(operator), (_rule, str(operator), dict(tensors), dict(attrs)), _SECONDS, _checked)
        return "" if found is None else found

    def ask(self, operator: str, question: tuple[Any, ...], seconds: float, read: Callable[[Any], T]) -> T | None:
        """Return what a function returns in the child; None if it crashes, or takes more seconds of CPU time.

        The question is a function of this package and its arguments; `read` checks the JSON value that it returns.
        """
        if not CAN_FORK or self._failures[operator] >= _MOST_FAILURES:
            return None
        if (work := current_work()) is not None:
            seconds = min(seconds, max(0.0, work.seconds - work.seconds_spent) + _LEAST)
        answer = None
        started = time.monotonic()
        with self._lock:
            try:
                self._child = self._child or ForkedChild(_serve)
                self._child.requests.send_bytes(pickle.dumps((seconds, *question)))
                if self._child.replies.poll(_MOST_WAIT):
                    spent, found = json.loads(self._child.replies.recv_bytes(_BYTES))
                    answer, seconds = read(found), max(0.0, float(spent))
            except (EOFError, OSError, SerializationError, TypeError, ValueError):  # it crashed, or replied nonsense
                pass
            if answer is None:
                self._failures[operator] += 1
                self.stop()
        if work is not None:
            work.spend(min(seconds, time.monotonic() - started))
        return answer

    def stop(self) -> None:
        """End the child process, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def forget(self) -> None:
        """Drop a child process that belongs to the process that this one was forked from."""
        self._lock = threading.Lock()
        if self._child is not None:
            self._child.close()
            self._child = None


def _serve(questions: Connection, answers: Connection) -> None:
    """Serve calls until the request pipe is closed."""
    gc.disable()  # objects belong to the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # open copies of the parent's pipes and sockets would block their readers
    first, second = sorted((questions.fileno(), answers.fileno()))
    for start, stop in ((3, first), (first + 1, second), (second + 1, os.sysconf("SC_OPEN_MAX"))):
        os.closerange(start, stop)
    limit_resources(_MEMORY, {})
    torch.set_num_threads(1)
    while True:
        try:
            seconds, function, *arguments = pickle.loads(questions.recv_bytes())
        except EOFError:
            return
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = function(*arguments)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.send_bytes(json.dumps([time.process_time() - started, answer]).encode())


def _rule(name: str, tensors: Mapping[str, Made], attrs: Mapping[str, Any]) -> list[Made] | str:
    operator: Any = find_operator(name)
    return call_rule(operator, tensors, attrs)


def _checked(answer: Any) -> list[Made] | str:
    """Validate an answer of the child, whose memory a rule may have corrupted."""
    if isinstance(answer, str):
        return answer
    rows = [(tuple(shape), dtype, None if stride is None else tuple(stride)) for shape, dtype, stride in answer]
    if all(dtype in DTYPES and len(shape) < _RANK and _are_sizes(shape, stride) for shape, dtype, stride in rows):
        return rows
    raise ValueError("malformed answer")


def _are_sizes(shape: tuple[Any, ...], stride: tuple[Any, ...] | None) -> bool:
    sizes = shape if stride is None else (*shape, *stride)
    return all(type(size) is int and size >= 0 for size in sizes) and (stride is None or len(stride) == len(shape))


WORKER = ShapeWorker()
if CAN_FORK:
    os.register_at_fork(after_in_child=WORKER.forget)
