"""Pieces with state outside the model: threads, contexts, clocks, the environment, files, torch's own settings."""

# mypy: ignore-errors

from __future__ import annotations

import contextvars
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy
import torch
from torch import nn

from tests.state_models.parameters import Weighted
from tests.state_models.piece import SIZE, piece

OUTSIDE = "state outside the model"
LOCAL = threading.local()
CONTEXT = contextvars.ContextVar("count", default=0)


@piece(OUTSIDE)
class CountsInThreadLocal(nn.Module):
    def forward(self, x):
        LOCAL.calls = getattr(LOCAL, "calls", 0) + 1
        return x * LOCAL.calls


@piece(OUTSIDE)
class CountsInContext(nn.Module):
    def forward(self, x):
        CONTEXT.set(CONTEXT.get() + 1)
        return x * CONTEXT.get()


@piece(OUTSIDE)
class CountsInEnvironment(nn.Module):
    def forward(self, x):
        os.environ["CALLS"] = str(int(os.environ.get("CALLS", 0)) + 1)
        return x * int(os.environ["CALLS"])


@piece(OUTSIDE)
class CountsInFile(nn.Module):
    def forward(self, x):
        path = Path(tempfile.gettempdir()) / f"calls-{os.getpid()}"
        path.write_text((path.read_text() if path.exists() else "") + "1")
        return x * len(path.read_text())


@piece(OUTSIDE)
class DrawsPythonNumber(nn.Module):
    def forward(self, x):
        return x * random.random()


@piece(OUTSIDE)
class DrawsByOwnRandom(nn.Module):
    def __init__(self):
        super().__init__()
        self.draw = random.Random(3)

    def forward(self, x):
        return x * self.draw.random()


@piece(OUTSIDE)
class DrawsByNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.draw = numpy.random.default_rng(3)

    def forward(self, x):
        return x * self.draw.random()


@piece(OUTSIDE)
class ReadsClock(nn.Module):
    def forward(self, x):
        return x * (time.perf_counter_ns() % 1009)


@piece(OUTSIDE)
class CountsInSysModule(nn.Module):
    def forward(self, x):
        sys.calls_of_a_test = getattr(sys, "calls_of_a_test", 0) + 1
        return x * sys.calls_of_a_test


@piece(OUTSIDE)
class CountsOnTensorAttribute(Weighted):
    """A Python attribute of a parameter."""

    def forward(self, x):
        self.w.calls = getattr(self.w, "calls", 0) + 1
        return x * self.w.calls


@piece(OUTSIDE)
class ReadsTensorAttribute(Weighted):
    """Nothing changes: every call reads what the constructor set."""

    def __init__(self):
        super().__init__()
        self.w.scale = 3.0

    def forward(self, x):
        return x * self.w * getattr(self.w, "scale", 1.0)


@piece(OUTSIDE)
class CountsOnPlainTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = torch.ones(SIZE)
        self.kept.calls = 0

    def forward(self, x):
        self.kept.calls += 1
        return x * self.kept * self.kept.calls


@piece(OUTSIDE)
class CountsInNumpyArray(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = numpy.zeros(1)

    def forward(self, x):
        self.counts += 1
        return x * float(self.counts[0])


@piece(OUTSIDE)
class SharesMemoryWithNumpy(nn.Module):
    """A plain tensor is a view of an array that forward writes to."""

    def __init__(self):
        super().__init__()
        self.counts = numpy.zeros(SIZE, dtype=numpy.float32)
        self.seen = torch.from_numpy(self.counts)

    def forward(self, x):
        self.counts += 1
        return x + self.seen


@piece(OUTSIDE)
class RunsInThread(nn.Module):
    """The arithmetic runs in another thread."""

    def forward(self, x):
        made = []
        thread = threading.Thread(target=lambda: made.append(x * 2 + 1))
        thread.start()
        thread.join()
        return made[0]


@piece(OUTSIDE)
class RunsInThreadUnderAutocast(Weighted):
    """Autocast belongs to a thread: the other thread computes in float32."""

    def forward(self, x):
        made = []
        with torch.autocast("cpu", dtype=torch.bfloat16):
            thread = threading.Thread(target=lambda: made.append(x @ x))
            thread.start()
            thread.join()
            return made[0] + (x @ x)


@piece(OUTSIDE)
class CountsInThread(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def count(self):
        self.calls += 1

    def forward(self, x):
        thread = threading.Thread(target=self.count)
        thread.start()
        thread.join()
        return x * self.calls


@piece(OUTSIDE)
class ChangesThreads(nn.Module):
    """The number of threads is a setting of torch."""

    def forward(self, x):
        torch.set_num_threads(2 if torch.get_num_threads() == 1 else 1)
        return x * torch.get_num_threads()


@piece(OUTSIDE)
class LeavesGradEnabled(Weighted):
    def forward(self, x):
        flag = torch.is_grad_enabled()
        torch.set_grad_enabled(not flag)
        made = x * (2 if flag else 1)
        torch.set_grad_enabled(flag)
        return made


@piece(OUTSIDE)
class LeavesPrecision(nn.Module):
    def forward(self, x):
        now = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if now == "highest" else "highest")
        return x * len(now)


@piece(OUTSIDE)
class CapturesInForward(Weighted):
    """A graph is captured inside forward."""

    def forward(self, x):
        from torch_ir import extract_ir

        ir = extract_ir(nn.Linear(2, 2).eval(), (torch.zeros(1, 2),), strict=False)
        return x * len(ir.nodes)


@piece(OUTSIDE)
class CountsByIdentity(nn.Module):
    """Objects of a call are other objects each time."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def forward(self, x):
        self.seen.add(len(self.seen))
        return x * len(self.seen)


@piece(OUTSIDE)
class WritesPlainTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = [torch.zeros(SIZE)]

    def forward(self, x):
        self.kept[0].add_(1)
        return x + self.kept[0]


@piece(OUTSIDE)
class WritesDefaultTensor(nn.Module):
    def forward(self, x, total=torch.zeros(SIZE)):
        total += 1
        return x + total


@piece(OUTSIDE)
class WritesGlobalTensor(nn.Module):
    def forward(self, x):
        TOTAL.add_(1)
        return x + TOTAL


TOTAL = torch.zeros(SIZE)


@piece(OUTSIDE)
class WritesClosureTensor(nn.Module):
    def __init__(self):
        super().__init__()
        total = torch.zeros(SIZE)
        self.step = lambda x: x + total.add_(1)

    def forward(self, x):
        return self.step(x)


@piece(OUTSIDE)
class WritesClassTensor(nn.Module):
    total = torch.zeros(SIZE)

    def forward(self, x):
        self.total.add_(1)
        return x + self.total


@piece(OUTSIDE)
class ReadsItemOfBuffer(nn.Module):
    """A Python number from a buffer that changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x * self.calls.item()


@piece(OUTSIDE)
class ReadsListOfPlainTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = torch.zeros(2)

    def forward(self, x):
        self.kept[0] += 1
        return x * self.kept.tolist()[0]
