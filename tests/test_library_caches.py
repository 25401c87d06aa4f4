"""Caches of an installed library that forward fills do not keep tensors of a capture."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_ir
from torch_ir.capture.state.python_state import PythonState

_LIBRARY = """
import functools
import torch

CACHE, CALLS, COUNT = {}, [], 0

def inner(n):
    global COUNT
    COUNT += 1

def wrapped(function):
    def call(n):
        return function(n)
    return call

@wrapped
def called(n):
    inner(n)

def table(n):
    CALLS.append(n)
    called(n)
    if n not in CACHE:
        CACHE[n] = torch.arange(n).cos()
    return CACHE[n] + Tables.of(n)

class Tables:
    @staticmethod
    @functools.lru_cache
    def of(n):
        return torch.arange(n).sin()
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installed library that defines no class of the model."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "some_library.py").write_text(_LIBRARY)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    yield importlib.import_module("some_library")
    del sys.modules["some_library"]


@pytest.mark.filterwarnings("ignore:forward changes state")
def test_caches_of_an_installed_library(library: Any) -> None:
    """Those of the functions that the model calls; what these call or wrap is not searched."""

    class Calling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table: torch.Tensor = library.table(x.shape[-1])
            return x * table

    model, args = Calling().eval(), (torch.ones(2, 4),)
    first, second = (torch_ir.extract_ir(model, args, strict=False).to_json() for _ in range(2))
    assert first == second
    assert (library.CACHE, library.CALLS, library.Tables.of.cache_info().currsize) == ({}, [], 0)
    state = PythonState(model)
    library.inner(1)
    assert not state.changes()
    library.CALLS.append(1)
    assert [change.name for change in state.changes()] == ["CALLS"]
