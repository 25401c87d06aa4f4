"""Run tests with the installed packages: all of them (`make test-here`), or the core suites (`make test-torch`).

python -m tests.installed [--core] [PYTEST OPTIONS]

A test that fails for want of a package is skipped with the package's name. Tests of known differences are left out.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pytest

_ROOT = Path(__file__).resolve().parents[1]
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
    *(
        Difference(test, ("2.11",), reason)
        for test, reason in (
            (
                "test_extract.py::test_functions_of_torch_that_capture_cannot_hold",
                "one capture ends in 'Expected FakeTensor' of torch",
            ),
            (
                "test_ladder.py::test_a_model_that_cannot_be_captured_is_diagnosed[UnknownOutput]",
                "an output of an unknown class that is not hashable is refused with another message",
            ),
            (
                "test_dynamic.py::test_one_extraction_runs_at_every_size[pooling]",
                "one dynamic size of a pooling model is refused",
            ),
            *(
                (test, "one dynamic size of a pooling model is refused")
                for test in (
                    "test_dynamic_models.py::test_one_extraction_equals_the_model_at_every_size[cnn-named]",
                    "test_dynamic_models.py::test_one_extraction_equals_the_model_at_every_size[cnn-automatic]",
                    "test_shapes.py::test_open_sizes_are_expressions[resnet18]",
                )
            ),
            (
                "test_own_shape_rules.py::test_own_rules_answer_as_fake_tensors_do[sample-aten.gather.default]",
                "a wrong dimension of `gather` on meta is an AssertionError of torch",
            ),
            ("test_ambient_state.py::test_a_generator_of_its_own_is_refused", "torch.export refuses it in other words"),
            (
                "test_ambient_state.py::test_counts_of_integer_weights_are_float64_by_themselves",
                "torch's shape rule of `bincount` says int64",
            ),
            (
                "test_data_dependent.py::test_a_write_beside_a_data_dependent_size",
                "torch.export cannot decide a condition on the size",
            ),
            ("test_decompose_pass.py::test_a_model_becomes_core_aten", "torch does not decompose attention"),
            ("test_model_explorer.py::test_control_flow_and_several_outputs", "torch.export refuses this `cond`"),
            ("test_onnx.py::test_a_size_that_the_exporter_would_fix_is_refused[max]", "the exporter refuses it"),
            ("test_onnx_numbers.py::test_numbers_stay_in_float64[function of onnxscript]", "the exporter fails"),
            (
                "test_inductor.py::test_what_cannot_be_compiled_is_said_in_one_sentence",
                "Inductor does not say which node it cannot compile",
            ),
            (
                "test_private_cache.py::test_helpers_of_inductor_do_not_import_from_the_current_folder",
                "Inductor has no such helper",
            ),
            (
                "test_shard_training.py::test_operators_over_a_sharded_batch[leaky_relu]",
                "the gradient has other operators, and a gather more",
            ),
            *(
                (f"test_grouped_products.py::{test}", "`grouped_mm` takes bfloat16 alone")
                for test in (
                    "test_symbolic_sizes_are_decomposed_once_for_all",
                    "test_onnx_runtime_computes_all_sizes",
                    "test_texts_hold_no_grouped_product",
                )
            ),
            *(
                (test, "it has other operators")
                for test in (
                    "test_attr_order.py::test_the_order_is_that_of_every_schema",
                    "test_cost.py::test_every_view_of_torch_is_known",
                    "test_forms.py::test_every_higher_order_operator_has_a_verdict",
                    "test_reach.py::test_every_operator_is_classified[unclassified]",
                )
            ),
            (
                "test_training.py::test_numbers_that_the_graph_computes_may_round_differently[<lambda>0]",
                "beside a GPU, a step of Adafactor is a KeyError of torch",
            ),
        )
    ),
    Difference(
        "test_fast_capture.py::test_refused[address]", ("2.11", "2.15"),
        "a model that asks for `data_ptr()` is recorded, with a placeholder",
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
    *(
        Difference(test, ("5.17",), reason, "transformers")
        for test, reason in (
            ("test_shard.py::test_whole_experts_on_each_rank", "an expert layer has one product more to reduce"),
            ("test_shard_experts.py::test_results_are_those_of_the_model[mixtral]", "likewise"),
            ("test_shard_experts.py::test_results_are_those_of_the_model[deepseek_v3]", "likewise"),
            ("test_cost_hand.py::test_flops_of_a_llama_by_hand", "its rotary embedding has other operators"),
            ("test_cost_operators.py::test_the_stored_operators_are_those_of_a_sample[tapas]", "other operators"),
            ("test_cache_forms.py::test_description_of_attention", "its SDPA leaves out the soft cap"),
            ("test_cache_forms.py::test_blocks_of_windows_are_used_in_turn", "one constraint on sizes more"),
            *(
                (test, "its Llama asks whether autocast is on, which is a warning")
                for test in (
                    "test_llm_forms.py::test_a_model_that_cannot_be_tried",
                    "test_model_names.py::test_causal_models_of_transformers",
                    "test_model_names.py::test_models_where_a_graph_is_wanted",
                )
            ),
            ("test_multimodal.py::test_layers_that_attend_to_the_image", "Mllama takes the whole mask in each step"),
            ("test_multimodal.py::test_tokens", "the model's own `generate` refuses the inputs of the tiny LLaVA"),
            ("test_multimodal.py::test_command_line", "likewise"),
        )
    ),
    *(
        Difference(test, ("3.12",), "the search through the process meets more holders", "Python")
        for test in (
            "test_capture_leaks.py::test_a_tensor_of_an_earlier_capture_is_refused",
            "test_record.py::test_few_objects_are_searched_for_in_the_whole_process",
        )
    ),
    Difference(
        "test_backends.py::test_numbers_that_the_data_decides[onnxruntime]", ("1.23",),
        "ONNX Runtime, the newest for Python 3.10, refuses the results", "onnxruntime",
    ),
)  # fmt: skip
# What these compare with are results of the versions in constraints.txt.
PINNED = (
    "test_docs.py::test_page_runs_as_written", "test_wheel.py::test_the_tour_needs_the_package_alone",
    "test_benchmarks.py::test_the_script_measures_some_architectures",
    "test_benchmarks.py::test_a_stored_outcome_is_up_to_date",
    *(
        f"test_captures.py::{test}"
        for test in (
            "test_a_sample_is_as_stored", "test_every_capture_is_as_stored",
            "test_a_capture_makes_as_many_python_calls", "test_hashes_change_nothing",
        )
    ),
)  # fmt: skip
_PIN = re.compile(r"^(torch|transformers|onnxruntime)==(.*)$", re.MULTILINE)


def arguments(versions: Mapping[str, str], is_core: bool) -> list[str]:
    """Return the arguments of pytest for the versions of torch and of other packages."""
    minor = {package: ".".join(number.split(".")[:2]) for package, number in versions.items()}
    files = [f"tests/test_{name}.py" for names in SUITES.values() for name in names] if is_core else ["tests"]
    left_out = [each.test for each in DIFFERENCES if minor.get(each.package) in each.versions]
    pins = _PIN.findall((_ROOT / "constraints.txt").read_text(encoding="utf-8"))
    if any(versions.get(package, "").partition("+")[0] != pin for package, pin in pins):
        print(f"not run with other versions than those of constraints.txt: {', '.join(PINNED)}")
        left_out += PINNED
    return [*files, *(f"--deselect=tests/{test}" for test in left_out)]


def missing_package(text: str) -> str | None:
    """Return the first package that a failure names and that is not installed.

    A hint to install an extra from a folder is one of a `torch-ir` that is not installed itself.
    """
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
    return "torch-ir" if re.search(r"install '?/[^\n]*\[", text) else None


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
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = [plugin for package, plugin in _PLUGINS.items() if importlib.util.find_spec(package)]
    names = sorted({each.package for each in DIFFERENCES})
    installed = {name: version(name) for name in names if importlib.util.find_spec(name)}
    installed["Python"] = platform.python_version()
    print(", ".join(f"{package} {number}" for package, number in installed.items()), flush=True)
    loaded = [f"-p{plugin}" for plugin in (*plugins, "tests.installed")]
    chosen = arguments(installed, "--core" in options)
    return pytest.main([*loaded, *_OPTIONS, *chosen, *(option for option in options if option != "--core")])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
