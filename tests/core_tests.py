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
        "extract", "extract_effects", "extract_interface", "fast_capture", "exactness_check", "one_naming",
        "crosscheck", "ladder", "causes", "writes", "dynamic", "torch_internals", "own_shape_rules",
    ),
    "record": ("record", "record_decisions"),
    "run": ("executor", "executor_state", "weights"),
    "verify": ("verify", "verify_catches", "localise"),
    "optimiser": ("passes", "optimise_models", "fold_batch_norm", "fuse_layers", "pack_convolutions"),
    "targets": ("to_torch", "onnx", "backends"),
    "models": ("comprehensive", "architectures", "llm"),
}  # fmt: skip


class Difference(NamedTuple):
    """A test that fails with some minor versions of torch, and what it shows; docs/compatibility.md lists them."""

    test: str
    versions: tuple[str, ...]
    reason: str


DIFFERENCES = (
    Difference(
        "test_extract.py::test_functions_of_torch_that_capture_cannot_hold", ("2.11",),
        "one capture ends in 'Expected FakeTensor' of torch",
    ),
    Difference(
        "test_ladder.py::test_a_model_that_cannot_be_captured_is_diagnosed[UnknownOutput]", ("2.11",),
        "an output of an unknown class that is not hashable is refused with another message",
    ),
    Difference(
        "test_fast_capture.py::test_refused[address]", ("2.11", "2.15"),
        "a model that asks for `data_ptr()` is recorded, with a placeholder",
    ),
    Difference(
        "test_dynamic.py::test_one_extraction_runs_at_every_size[pooling]", ("2.11",),
        "one dynamic size of a pooling model is refused",
    ),
    Difference("test_writes.py::test_rule[mask]", ("2.15",), "`x[mask] = 0` is `masked_fill`, not `index_put`"),
    Difference(
        "test_dynamic.py::test_a_promise_that_torch_cannot_prove", ("2.15",),
        "torch.export proves a condition that it could not prove before",
    ),
)  # fmt: skip


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
