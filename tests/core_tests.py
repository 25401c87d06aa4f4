"""The core suites, for `make test-torch`: run them with the installed torch, without the tests of known differences.

python -m tests.core_tests [PYTEST OPTIONS]
"""

import sys
from typing import NamedTuple

import pytest

SUITES = {
    "graph": ("graph", "edits", "check"),
    "files": ("files", "format", "json", "json_values", "protobuf", "parse"),
    "capture": (
        "extract", "extract_effects", "extract_interface", "fast_capture", "self_check", "one_naming", "crosscheck",
        "ladder", "writes", "dynamic", "torch_internals",
    ),
    "record": ("record", "record_decisions"),
    "run": ("executor", "executor_state", "weights"),
    "verify": ("verify", "verify_catches", "localise"),
    "optimiser": ("passes", "optimise_models", "fold_batch_norm", "fuse_layers", "pack_convolutions"),
    "targets": ("to_torch", "onnx", "backends"),
    "models": ("comprehensive", "architectures"),
}  # fmt: skip


class Difference(NamedTuple):
    """A test that fails with some minor versions of torch, and why; docs/compatibility.md lists the reasons."""

    test: str
    versions: tuple[str, ...]
    reason: str


DIFFERENCES: tuple[Difference, ...] = ()


def arguments(version: str) -> list[str]:
    """Return the arguments of pytest for a version of torch."""
    minor = ".".join(version.split(".")[:2])
    files = [f"tests/test_{name}.py" for names in SUITES.values() for name in names]
    left_out = [f"tests/{each.test}" for each in DIFFERENCES if minor in each.versions]
    return [*files, *(f"--deselect={test}" for test in left_out)]


if __name__ == "__main__":
    import torch

    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    sys.exit(pytest.main([*arguments(torch.__version__), *sys.argv[1:]]))
