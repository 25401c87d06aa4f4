"""The core suites, for `make test-torch`: run them with the installed torch, without the tests of known differences.

python -m tests.core_tests [PYTEST OPTIONS]
"""

import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import NamedTuple

import pytest

SUITES = {
    "graph": ("graph", "edits", "check"),
    "files": ("files", "format", "json", "json_values", "protobuf", "parse"),
    "capture": (
        "extract", "extract_effects", "extract_interface", "fast_capture", "exactness_check", "one_naming",
        "crosscheck", "ladder", "causes", "writes", "dynamic", "open_sizes", "torch_internals", "own_shape_rules",
    ),
    "record": ("record", "record_decisions"),
    "run": ("executor", "executor_state", "weights"),
    "verify": ("verify", "verify_catches", "localise"),
    "optimiser": ("passes", "optimise_models", "fold_batch_norm", "fuse_layers", "pack_convolutions"),
    "targets": ("to_torch", "onnx", "backends"),
    "models": ("comprehensive", "architectures", "llm"),
}  # fmt: skip


class Difference(NamedTuple):
    """A test that fails with some minor versions of a package, and what it shows; docs/compatibility.md lists them."""

    test: str
    versions: tuple[str, ...]
    reason: str
    package: str = "torch"


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
    Difference(
        "test_own_shape_rules.py::test_own_rules_answer_as_fake_tensors_do[sample-aten.gather.default]", ("2.11",),
        "a wrong dimension of `gather` on meta is an AssertionError of torch",
    ),
    Difference("test_writes.py::test_rule[mask]", ("2.15",), "`x[mask] = 0` is `masked_fill`, not `index_put`"),
    *(
        Difference(f"test_llm.py::{test}", ("5.5",), reason, "transformers")
        for test, reason in (
            ("test_the_graphs_generate_what_the_model_generates[lfm2]", "recurrent states need 5.14"),
            ("test_recurrent_states", "recurrent states need 5.14"),
            (
                "test_models_that_are_refused[<lambda>-layer 0 of deepseek_v4 keeps a DeepseekV4HCACache, "
                "which is not supported]",
                "it has no deepseek_v4",
            ),
            ("test_command_mistakes[arguments5-keeps a DeepseekV4HCACache]", "it has no deepseek_v4"),
        )
    ),
    Difference(
        "test_backends.py::test_numbers_that_the_data_decides[onnxruntime]", ("1.23",),
        "ONNX Runtime, the newest for Python 3.10, refuses the results", "onnxruntime",
    ),
)  # fmt: skip


def arguments(versions: Mapping[str, str]) -> list[str]:
    """Return the arguments of pytest for the versions of torch and of other packages."""
    minor = {package: ".".join(version.split(".")[:2]) for package, version in versions.items()}
    files = [f"tests/test_{name}.py" for names in SUITES.values() for name in names]
    left_out = [f"tests/{each.test}" for each in DIFFERENCES if minor.get(each.package) in each.versions]
    return [*files, *(f"--deselect={test}" for test in left_out)]


if __name__ == "__main__":
    installed = {package: version(package) for package in sorted({each.package for each in DIFFERENCES})}
    shown = ", ".join(f"{package} {number}" for package, number in installed.items())
    print(f"{shown}, Python {sys.version.split()[0]}", flush=True)
    sys.exit(pytest.main([*arguments(installed), *sys.argv[1:]]))
