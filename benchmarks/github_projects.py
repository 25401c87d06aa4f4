"""Load and run modules of the generated files of jansel/pytorch-jit-paritybench, one file per GitHub project.

The files import packages that may not be installed, and helpers of that repository; both are replaced.
"""

import copy
import importlib.util
import os
import random
import re
import resource
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

Build = Callable[[], nn.Module]
Arguments = Callable[[], tuple[Sequence[Any], dict[str, Any]]]
_BYTES = 10 << 30
_PLAIN = (torch.Tensor, int, float, complex, str, type(None))
_ABSENT = (
    "torchvision", "torchaudio", "torchtext", "pandas", "scipy", "sklearn", "tensorflow", "matplotlib",
    "torch.utils.tensorboard",
)  # fmt: skip


def rows(path: Path) -> int:
    """Return how many modules a file has, without running it."""
    return len(re.findall(r"^    def test_\d+\(", path.read_text(encoding="utf-8"), re.M))


def load(path: Path, row: int) -> tuple[str, Build, Arguments]:
    """Return the name of a class, a function that builds its module, and one that makes inputs: it runs the file."""
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, _AbsentPackages())
    sys.modules["_paritybench_helpers"] = _helpers()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    kind, its_arguments, arguments = module.TESTCASES[row][:3]
    state: dict[str, torch.Tensor] = {}

    def build() -> nn.Module:
        args, kwargs = seeded(its_arguments)
        made: nn.Module = kind(*args, **kwargs).eval()
        if state:  # weights may be uninitialised memory
            made.load_state_dict(state, strict=False)
        else:
            state.update(copy.deepcopy(made.state_dict()))
        return made

    return kind.__name__, build, arguments


def seeded(make: Callable[..., Any], *args: Any, seed: int = 0, **kwargs: Any) -> Any:
    """Call a function with all random generators seeded."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return make(*args, **kwargs)


@torch.no_grad()
def eager_results(build: Build, arguments: Arguments) -> list[Any]:
    """Return the results of a new module on two sets of values; raise if it does not repeat them."""
    expected = [run_on(build(), arguments, seed) for seed in range(2)]
    leaves = pytree.tree_leaves(expected)
    kinds = {isinstance(leaf, _PLAIN) + isinstance(leaf, torch.Tensor) for leaf in leaves}
    if 0 in kinds or 2 not in kinds:
        raise TypeError("the results are not tensors")
    model = build()
    if any(difference_of(expected[0], run_on(model, arguments, 0)) for _ in range(2)):
        raise ValueError("the module does not repeat its results")
    return expected


def run_on(model: Callable[..., Any], arguments: Arguments, seed: int) -> Any:
    """Return copies of the results on the inputs of a seed."""
    args, kwargs = seeded(arguments, seed=seed)
    return copy.deepcopy(seeded(model, *args, **kwargs))


def difference_of(expected: Any, found: Any) -> str:
    one, other = pytree.tree_leaves(expected), pytree.tree_leaves(found)
    try:
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5, equal_nan=True)
    except (AssertionError, TypeError, ValueError) as error:
        return " ".join(str(error).split())[:300]
    return ""


def confine(folder: str) -> None:
    """Make this process leader of a session in a folder, silent, with a limit of address space."""
    os.setsid()
    os.chdir(folder)
    os.environ["HOME"] = folder
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


class _Absent(type):
    """The type of every name of a package that is not installed: a class that can be subclassed, but not called."""

    def __getattr__(cls, name: str) -> "_Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise ImportError(f"{cls.__name__} is of a package that is not installed")


class _AbsentPackages(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(_ABSENT) else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__getattr__"] = partial(getattr, _Absent("package", (), {}))


class _MockConfig(dict[str, Any]):
    __getattr__ = dict.__getitem__


class _DummyBlock(nn.ReLU):
    expansion = 1


def _helpers() -> types.ModuleType:
    """Return the repository's `_paritybench_helpers` without its tests."""
    module = types.ModuleType("_paritybench_helpers")
    module.__dict__.update(_mock_config=_MockConfig, _mock_layer=_mock_layer, DummyBlock=_DummyBlock)
    module.__dict__.update(patch_functional=_patch_functional, _paritybench_base=object)
    module.__dict__.update(_fails_compile=lambda: lambda test: test)
    return module


def _mock_layer(in_features: Any = None, out_features: Any = None, *_: Any, **options: Any) -> nn.Module:
    return nn.Linear(in_features, out_features, **options) if in_features and out_features else _DummyBlock()


def _patch_functional() -> None:
    """Add the functions of torch.functional to torch.nn.functional and vice versa: some projects import both as F."""
    one, other = torch.functional, torch.nn.functional
    for source, target in ((one, other), (other, one)):
        for name in filter(re.compile("[a-z]").match, dir(source)):
            target.__dict__.setdefault(name, getattr(source, name))
