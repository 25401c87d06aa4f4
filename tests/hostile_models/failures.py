"""Models that fail, never end or need too many resources."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import nn

from tests.hostile_models.case import X, case


@case(words=("KeyError", "'missing'"))
class RaisesItself(nn.Module):
    def forward(self, x):
        return {"present": x}["missing"]  # here


@case(words=("reduction dim", "accepts these inputs"))
class WrongShapes(nn.Module):
    def forward(self, x):
        return x @ x  # here


@case(args=(X, X), words=("do not match the arguments of forward",))
class TooManyInputs(nn.Module):
    def forward(self, x):  # here
        return x


@case(words=("sys.exit",))
class Exits(nn.Module):
    def forward(self, x):
        sys.exit(3)  # here


@case(words=("SIGABRT",), isolated=True)
class Aborts(nn.Module):
    def forward(self, x):
        os.abort()  # here


@case(words=("longer than 1 s", "endless loop"), isolated=True, time_limit=1)
class Hangs(nn.Module):
    def forward(self, x):
        while True:
            time.sleep(0.1)  # here


@case(captured_by="torch.export")
class Enormous(nn.Module):
    def forward(self, x):
        return x + torch.ones(3, 4, 1 << 50, device="meta").shape[1]
