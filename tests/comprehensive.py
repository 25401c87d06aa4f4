"""Run a model of the catalogue through the public API (extract, save, load, draw, verify), and report."""

import math
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from catalogue import Entry
from torch_ir import IR, TensorMeta, extract_ir, ir_to_mermaid, verify_ir_with_state_dict


@dataclass
class Result:
    """Result of one entry; `failed` names the step that failed and is empty on success."""

    entry: Entry
    failed: str = ""
    message: str = ""
    ir: IR | None = None
    picture: str = ""
    verification: str = ""
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.failed

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step, and name it as the failed one unless it reaches its end."""
        self.failed = name
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start
        self.failed = ""


def check(entry: Entry, folder: Path) -> Result:
    """Extract, save, load, draw and verify one entry; its files go to `folder`, its first failure into the result."""
    result = Result(entry)
    with warnings.catch_warnings(record=True) as caught, torch.random.fork_rng(devices=[]):
        warnings.simplefilter("always")
        try:
            _verify(result, _make(result, folder))
        except Exception as error:
            result.message = f"{type(error).__name__}: {error}"
    result.warnings = sorted({str(warning.message) for warning in caught})
    return result


def _make(result: Result, folder: Path) -> IR:
    """The IR as a reader of the saved file gets it."""
    entry, path = result.entry, folder / f"{result.entry.name}.json"
    with result.step("build"), torch.device("meta"):
        model = entry.build()
    with result.step("inputs"):
        inputs, kwargs = _to_meta((entry.inputs(), entry.kwargs()))
    with result.step("extract"):
        result.ir = extract_ir(model, inputs, model_name=entry.name, kwargs=kwargs)
    with result.step("save"):
        folder.mkdir(parents=True, exist_ok=True)
        result.ir.save(path)
    with result.step("load"):
        loaded = IR.load(path)
    with result.step("draw"):
        result.picture = ir_to_mermaid(result.ir, max_nodes=30)
        path.with_suffix(".mmd").write_text(result.picture + "\n", encoding="utf-8")
    return loaded


def _verify(result: Result, ir: IR) -> None:
    """Run the loaded IR with the weights of a real model and compare the two."""
    torch.manual_seed(0)
    with result.step("build real"):
        model, inputs, kwargs = result.entry.build(), result.entry.inputs(), result.entry.kwargs()
    with result.step("verify"):
        valid, report = verify_ir_with_state_dict(
            ir=ir,
            state_dict=model.state_dict(),
            original_model=model,
            test_inputs=inputs,
            test_kwargs=kwargs,
        )
        result.verification = str(report)
    if not valid:
        result.failed, result.message = "verify", report.error_message or result.verification


def _to_meta(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), tree)


def write_report(result: Result, folder: Path) -> Path:
    """Write the page of one model and return where it is."""
    parts = [f"# {result.entry.name}", result.entry.about, _table(("", ""), _facts(result))]
    if result.ir is not None:
        parts += _graph(result.ir)
    if result.verification:
        parts += ["## Verification", _fence("text", result.verification)]
    if result.picture:
        parts += ["## Picture", _fence("mermaid", result.picture)]
    if result.warnings:
        parts += ["## Warnings", _fence("text", "\n".join(result.warnings))]
    parts += ["## Times", _table(("step", "ms"), ((s, f"{1000 * t:.1f}") for s, t in result.seconds.items()))]
    return _write(folder / f"{result.entry.name}.md", parts)


def write_summary(results: list[Result], folder: Path) -> Path:
    """Write the index of all pages and return where it is."""
    passed = sum(result.passed for result in results)
    columns = ("model", "category", "verdict", "nodes", "weights", "parameters", "seconds", "about")
    rows = ((f"[{r.entry.name}]({r.entry.name}.md)", *_summary(r), r.entry.about) for r in results)
    return _write(folder / "README.md", ["# Catalogue", f"{passed} of {len(results)} passed.", _table(columns, rows)])


def verdict(result: Result) -> str:
    """PASSED, or the step that failed."""
    return "PASSED" if result.passed else f"FAILED ({result.failed})"


def _summary(result: Result) -> tuple[str, ...]:
    seconds = f"{sum(result.seconds.values()):.2f}"
    if result.ir is None:
        return result.entry.category, verdict(result), "", "", "", seconds
    counts = (len(result.ir.nodes), len(result.ir.weights), _parameters(result.ir))
    return result.entry.category, verdict(result), *(f"{count:,}" for count in counts), seconds


def _facts(result: Result) -> list[tuple[str, str]]:
    names = ("category", "verdict", "nodes", "weights", "parameters")
    facts = dict(zip(names, _summary(result)[:5], strict=True))
    if result.message:
        facts["message"] = result.message
    return [(name, fact) for name, fact in facts.items() if fact]


def _graph(ir: IR) -> list[str]:
    tensors = [("input", *_tensor(t)) for t in ir.graph_inputs] + [("output", *_tensor(t)) for t in ir.graph_outputs]
    ops = Counter(node.op_type for node in ir.nodes).most_common()
    columns = ("", "name", "shape", "dtype")
    return ["## Inputs and outputs", _table(columns, tensors), "## Operators", _table(("operator", "count"), ops)]


def _tensor(tensor: TensorMeta) -> tuple[str, str, str]:
    return tensor.name, "x".join(map(str, tensor.shape)) or "scalar", tensor.dtype


def _parameters(ir: IR) -> int:
    return sum(math.prod(weight.shape) for weight in ir.weights)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def _fence(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _write(path: Path, parts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path
