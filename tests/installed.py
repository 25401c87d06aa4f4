"""Run tests with the installed packages: all of them (`make test-here`), or the core suites (`make test-torch`).

python -m tests.installed [--core] [PYTEST OPTIONS]

A test that fails for want of a package is skipped with the package's name. Tests of known differences are left out.
"""

import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pytest

_MISSING = re.compile(
    r"No module named '?([\w.]+)|\bneeds ([\w.]+)[^;\n]*; install|No package metadata was found for ([\w.-]+)"
)
_PLUGINS = {"xdist": "xdist.plugin", "hypothesis": "_hypothesis_pytestplugin"}  # no others that are installed
# what libraries of other versions announce about one another
_OPTIONS = ("-W", "default::DeprecationWarning", "-W", "default::FutureWarning", "-rs")

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


def arguments(versions: Mapping[str, str], is_core: bool) -> list[str]:
    """Return the arguments of pytest for the versions of torch and of other packages."""
    minor = {package: ".".join(number.split(".")[:2]) for package, number in versions.items()}
    files = [f"tests/test_{name}.py" for names in SUITES.values() for name in names] if is_core else ["tests"]
    left_out = [f"tests/{each.test}" for each in DIFFERENCES if minor.get(each.package) in each.versions]
    return [*files, *(f"--deselect={test}" for test in left_out)]


def missing_package(text: str) -> str | None:
    """Return the first package that a failure names and that is not installed."""
    for found in _MISSING.finditer(text):
        module, package, distribution = found.groups()
        if distribution is not None:
            with suppress(PackageNotFoundError):
                importlib.metadata.version(distribution)
                continue
            return distribution
        name = (module or package).partition(".")[0]
        if importlib.util.find_spec(name) is None:
            return name
    return None


def _skipped(report: pytest.TestReport | pytest.CollectReport, path: str, line: int) -> None:
    shown = report.longreprtext + "".join(text for _, text in report.sections)
    if report.failed and (name := missing_package(shown)):
        report.outcome, report.longrepr = "skipped", (path, line, f"Skipped: {name} is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    _skipped(report, *item.location[:2])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    _skipped(report, collector.nodeid, 0)
    return report


def main(*options: str) -> int:
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = [plugin for package, plugin in _PLUGINS.items() if importlib.util.find_spec(package)]
    names = sorted({each.package for each in DIFFERENCES})
    installed = {name: version(name) for name in names if importlib.util.find_spec(name)}
    shown = ", ".join(f"{package} {number}" for package, number in installed.items())
    print(f"{shown}, Python {sys.version.split()[0]}", flush=True)
    loaded = [f"-p{plugin}" for plugin in (*plugins, "tests.installed")]
    chosen = arguments(installed, "--core" in options)
    return pytest.main([*loaded, *_OPTIONS, *chosen, *(option for option in options if option != "--core")])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
