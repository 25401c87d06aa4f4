"""Source check: operators are called in few places, and only constant folding calls them on values of a file."""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch_ir
from torch_ir.ops.own_shape_rules.shape_rule_table import RULES, VIEWS
from torch_ir.ops.safe_shape_calls import is_safe_in_process

HOUSE = Path(torch_ir.__file__).parent
# Folders whose commands read a file without running it; code that is not listed may not run an operator.
READING = (
    "ir", "analysis", "passes", "safety", "formats", "rewrite", "draw", "explorer", "targets", "ops", "golden",
    "sharding", "pipeline", "planning", "simulators", "entries", "quantization", "training", "llm",
)  # fmt: skip
CALLERS = {
    "ops/calling.py": "the function by which the others call",
    "analysis/shapes/shape_rules.py": "shape rules, on tensors without values",
    "analysis/shapes/onednn_shapes.py": "a shape rule, on tensors without values",
    "analysis/values/constants.py": "values of a file, by the operators of ops/foldable.py alone",
    "targets/onnx/exact_operators.py": "rules that are traced, on tensors without values",
    "passes/pack/convolutions.py": "whether this machine has bfloat16, which takes no tensor",
    "ops/prepare_run.py": "the executor's calls",
    "llm/placeholder_check.py": "an assertion in the user's model, while it is captured",
}
RUNNING = {
    "passes/random_check.py": "asked for with verify=",
    "passes/rounding.py": "asked for with verify=",
    "golden/write.py": "writes the values of a run, which is what it is asked for",
    "sharding/local_ranks.py": "ranks that run a sharded graph",
    "pipeline/in_turn.py": "stages that run one after the other",
    "pipeline/stage_process.py": "a stage that runs in its own process",
    "pipeline/training_run.py": "stages of a training step, one micro-batch after the other",
    "entries/execute.py": "entry points that run along their map",
    "quantization/observers.py": "observes the ranges of samples, which are passed for that",
    "quantization/layer_sensitivity.py": "compares a quantised graph with the graph",
    "llm/generation.py": "generates tokens",
    "llm/run_encoders.py": "generates tokens from images and sounds",
    "llm/compiled/language_model.py": "generates tokens",
    "llm/forms/form_steps.py": "generates tokens",
    "llm/forms/fixed_parts.py": "masks and tables of positions, by the operators of ops/foldable.py, or in a child",
}
EXPORTING = {
    "cli/verbs/convert.py": "convert to .pt2",
    "targets/torch/exporting.py": "convert to ONNX",
    "targets/onnx/onnx_program.py": "convert to ONNX",
}


def _named(node: ast.AST) -> str:
    """The beginning of an expression, such as `torch.ops.aten.add` or `find_operator(`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_named(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{_named(node.func)}("
    return f"{_named(node.value)}[" if isinstance(node, ast.Subscript) else ""


def _finds_operator(value: ast.AST) -> bool:
    return any(_named(node).endswith("find_operator(") for node in ast.walk(value) if isinstance(node, ast.Call))


def _calls(nodes: list[ast.AST]) -> Iterator[str]:
    """Names that are called as an operator: `results`, a resolved operator, or one of torch's."""
    found = {
        target.id
        for node in nodes
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and _finds_operator(node.value)
    }
    for node in nodes:
        if isinstance(node, ast.Call):
            name = _named(node.func)
            if name in {"results", "operator", "overload", *found} or name.startswith(("torch.ops.", "find_operator(")):
                yield name


@dataclass
class Source:
    """What the tests ask about a file of the package."""

    calls_operators: bool
    imports: set[str]
    exports: bool


@functools.cache
def _sources() -> dict[str, Source]:
    """Every file, read once; the trees themselves would make each garbage collection after it slower."""
    return {path.relative_to(HOUSE).as_posix(): _read(path) for path in sorted(HOUSE.rglob("*.py"))}


def _read(path: Path) -> Source:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    called = {_named(node.func) for node in nodes if isinstance(node, ast.Call)}
    return Source(
        calls_operators=any(_calls(nodes)),
        imports={alias.name for node in imports for alias in node.names},
        exports=not called.isdisjoint(("torch.export.export", "torch.onnx.export", "onnx_core.export")),
    )


def _reading() -> dict[str, Source]:
    return {name: source for name, source in _sources().items() if name.split("/")[0] in READING}


def test_operators_are_called_in_few_places() -> None:
    assert {name for name, source in _reading().items() if source.calls_operators} == set(CALLERS)


def test_a_call_is_found_however_it_is_written() -> None:
    for source in (
        "torch.ops.aten.add(x, y)",
        "operator(**arguments)",
        "overload: Any = find_operator(n)\noverload(x)",
        "find_operator(name)(x)",
        "made = find_operator(name) or other\nmade(x)",
        "torch.ops.aten[name](x)",
    ):
        assert any(_calls([*ast.walk(ast.parse(source))])), source
    assert not any(_calls([*ast.walk(ast.parse("operator = find_operator(name)\nprint(operator)"))]))


def test_graphs_are_run_only_where_that_is_asked_for() -> None:
    found = {name for name, source in _reading().items() if not source.imports.isdisjoint(("IRExecutor", "execute_ir"))}
    assert found == set(RUNNING)


def test_torch_exports_a_graph_only_where_the_page_says_so() -> None:
    """Which calls shape rules in this process: `convert` to two formats; models are the user's own."""
    found = {name for name, source in _sources().items() if source.exports}
    assert {name for name in found if name.split("/")[0] not in ("capture", "backends", "llm")} == set(EXPORTING)
    page = (HOUSE.parent / "docs" / "security.md").read_text()
    assert "`convert` to `.onnx` or `.pt2`" in page


def test_the_weights_of_a_checkpoint_are_compared_without_values() -> None:
    """`torch-ir weights` reads headers; it binds nothing to the graph and runs nothing."""
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(ast.parse((HOUSE / "cli" / "verbs" / "weights.py").read_text()))
        if isinstance(node, (ast.Name, ast.Attribute))
    }
    assert {"read_headers", "compare_headers"} <= names
    assert not names & {"load_weights", "fit_weights", "IRExecutor", "bind", "load"}


def test_only_folding_has_values() -> None:
    """Shape inference creates its own tensors, on meta or as fakes."""
    own = [*(HOUSE / "ops" / "own_shape_rules").glob("*.py")]
    assert len(own) > 5
    for name in (HOUSE / "analysis/shapes/shape_rules.py", *own, HOUSE / "analysis/shapes/onednn_shapes.py"):
        tree = ast.parse(name.read_text())
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {"to_tensor", "from_tensor", "TensorData"}, name
    constants = (HOUSE / "analysis" / "values" / "constants.py").read_text()
    assert "is_foldable(node)" in constants
    parts = (HOUSE / "llm" / "forms" / "fixed_parts.py").read_text()
    assert "isolated = not all(is_computable_here(node) and shapes.confirms(node) for node in part.nodes)" in parts
    assert parts.count("execute_ir(") == 1


def test_shape_rules_run_in_this_process_by_a_list() -> None:
    """One caller besides the child process, and it checks first."""
    users = {name for name, source in _reading().items() if "call_rule" in source.imports}
    assert users == {"analysis/shapes/inference.py", "analysis/shapes/shape_worker.py"}
    assert "if is_safe_in_process(operator, shapes, attrs)" in (HOUSE / "analysis/shapes/inference.py").read_text()


def test_own_rules_call_only_kernels_of_views() -> None:
    """They run in this process for every operator; the operators that they call are on the list of safe ones."""
    folder = HOUSE / "ops" / "own_shape_rules"
    nodes = [node for path in folder.glob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    called = {_named(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert {name for name in called if "aten" in name} == {"_aten.slice.Tensor", "_aten.select.int"}
    views = {func for func, rule in RULES.items() if func is rule}
    assert views == set(VIEWS)
    assert [str(func) for func in views if not is_safe_in_process(func, [], {})] == []
