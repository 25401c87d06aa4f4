"""Shape rules that crash, hang or return nonsense do so in a child process, and the check continues."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cpu_time import at_most
from torch_ir.analysis.shapes import shape_worker
from torch_ir.analysis.shapes.shape_rules import Made, call_rule
from torch_ir.analysis.shapes.shape_worker import ShapeWorker
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ops.safe_shape_calls import is_safe_in_process
from torch_ir.ops.schema import find_operator
from torch_ir.safety import Report, examine

EMPTY: dict[str, Made] = dict.fromkeys(("input", "grad_output", "reservedSpace"), ((0,), "float32", None))
ATTENTION: dict[str, Made] = {
    "query": ((0, 5, 56), "bfloat16", None),
    "key": ((0, 5, 56), "bfloat16", None),
    "value": ((1, 4, 4), "float16", None),
}  # fmt: skip
NORM_ATTRS = {
    "impl_index": 1, "weight": None, "running_mean": None, "running_var": None, "save_mean": None,
    "save_var_transform": None, "train": False, "eps": 0.0, "output_mask": [False, False, False],
}  # fmt: skip
CRASHING: list[tuple[str, dict[str, Made], dict[str, Any]]] = [
    ("aten._batch_norm_impl_index_backward.default", EMPTY, NORM_ATTRS),
    ("aten._scaled_dot_product_attention_math.default", ATTENTION, {"is_causal": True, "enable_gqa": True}),
    ("aten.scaled_dot_product_attention.default", ATTENTION, {"is_causal": True, "enable_gqa": True}),
]
SQUARE: dict[str, Made] = {"self": ((3, 3), "float32", None)}


@pytest.fixture
def worker() -> Iterator[ShapeWorker]:
    worker = ShapeWorker()
    yield worker
    worker.stop()


def _graph(op_type: str, tensors: dict[str, Made], attrs: dict[str, Any]) -> IR:
    inputs = [TensorMeta(name, shape, dtype, stride=stride) for name, (shape, dtype, stride) in tensors.items()]
    made = TensorMeta("made", (1,), "float32")
    return IR([OpNode("made", op_type, inputs, [made], attrs, args=tensors)], inputs, [made])


@pytest.mark.parametrize("call", CRASHING, ids=lambda call: call[0])
def test_a_check_survives_rules_that_crash(call: tuple[str, dict[str, Made], dict[str, Any]]) -> None:
    report = Report()
    errors = list(examine(_graph(*call), report))
    assert len(errors) + report.declared.total() == 1  # refused, or its shape stays as declared


@pytest.mark.parametrize("call", CRASHING[:2], ids=lambda call: call[0])
def test_a_rule_that_crashes_has_no_answer_and_the_next_call_has(
    worker: ShapeWorker, call: tuple[str, dict[str, Made], dict[str, Any]]
) -> None:
    operator, cholesky = find_operator(call[0]), find_operator("aten.cholesky.default")
    assert not is_safe_in_process(operator, [shape for shape, _, _ in call[1].values()], call[2])
    assert worker.call_rule(operator, call[1], call[2]) == ""
    assert worker.call_rule(cholesky, SQUARE, {}) == call_rule(cholesky, SQUARE, {})


@pytest.mark.parametrize(
    ("op_type", "tensors", "attrs"),
    [
        ("aten.cholesky.default", SQUARE, {"upper": False}),
        ("aten.fft_fft.default", SQUARE, {}),
        ("aten.linalg_svd.default", SQUARE, {"full_matrices": True}),
        ("aten.cholesky.default", {"self": ((3, 4), "float32", None)}, {}),
        ("aten.nonzero.default", SQUARE, {}),
    ],
)
def test_the_child_answers_as_this_process_does(
    worker: ShapeWorker, op_type: str, tensors: dict[str, Made], attrs: dict[str, Any]
) -> None:
    operator = find_operator(op_type)
    assert worker.call_rule(operator, tensors, attrs) == call_rule(operator, tensors, attrs)


def test_threads_share_one_child(worker: ShapeWorker) -> None:
    operator = find_operator("aten.cholesky.default")
    wrong: list[object] = []

    def ask(size: int) -> None:
        for _ in range(20):
            made = worker.call_rule(operator, {"self": ((size, size), "float32", None)}, {})
            if made != [((size, size), "float32", (1, size))]:
                wrong.append(made)

    threads = [threading.Thread(target=ask, args=[size]) for size in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("answer", [[[[-1], "float32", None]], [[[2], "float33", None]], [[[2], "float32", [1, 1]]], 7])
def test_a_malformed_answer_is_no_answer(worker: ShapeWorker, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    monkeypatch.setattr(shape_worker, "call_rule", lambda *_: answer)  # the child is forked after this
    assert worker.call_rule(find_operator("aten.cholesky.default"), SQUARE, {}) == ""


def test_a_rule_that_takes_too_long_is_stopped(worker: ShapeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> str:
        while True:
            pass

    monkeypatch.setattr(shape_worker, "call_rule", hang)
    monkeypatch.setattr(shape_worker, "_SECONDS", 1)
    assert worker.call_rule(find_operator("aten.cholesky.default"), SQUARE, {}) == ""


def test_the_child_holds_no_file_of_this_process(worker: ShapeWorker, tmp_path: Path) -> None:
    with open(tmp_path / "open", "w"):
        worker.call_rule(find_operator("aten.cholesky.default"), SQUARE, {})
        assert worker._child is not None
        folder = f"/proc/{worker._child.process}/fd"
        held = {os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)}
    assert {name.partition(":")[0] for name in held} == {"/dev/null", "pipe"}
    assert sum(name.startswith("pipe") for name in held) == 2


def test_a_forked_process_has_a_child_of_its_own() -> None:
    operator = find_operator("aten.cholesky.default")
    expected = shape_worker.WORKER.call_rule(operator, SQUARE, {})
    process = os.fork()
    if process == 0:
        os._exit(0 if shape_worker.WORKER.call_rule(operator, SQUARE, {}) == expected else 1)
    assert os.waitpid(process, 0)[1] == 0
    assert shape_worker.WORKER.call_rule(operator, SQUARE, {}) == expected


def test_an_operator_without_answers_is_not_called_again(worker: ShapeWorker) -> None:
    """A file with many such nodes takes no longer than a file with three."""
    name, tensors, attrs = CRASHING[0]
    operator: Any = find_operator(name)
    for _ in range(3):
        assert worker.call_rule(operator, tensors, attrs) == ""
    assert worker._child is None
    assert worker.call_rule(operator, tensors, attrs) == ""
    assert worker._child is None, "it was called a fourth time"
    assert worker.call_rule(find_operator("aten.tril.default"), SQUARE, {"diagonal": 0}) == [((3, 3), "float32", None)]  # type: ignore[arg-type]


def test_the_limit_is_on_cpu_time(worker: ShapeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine changes no verdict: a child that waits for a processor still answers."""
    monkeypatch.setattr(shape_worker, "_SECONDS", 0.4)
    monkeypatch.setattr(shape_worker, "call_rule", lambda operator, tensors, attrs: time.sleep(1) or [])
    assert worker.call_rule(find_operator("aten.tril.default"), SQUARE, {"diagonal": 0}) == []  # type: ignore[arg-type]


def test_a_rule_with_work_for_every_index_is_not_called() -> None:
    report = Report()
    sizes = (808, 2, 2)
    given: dict[str, Made] = dict.fromkeys(("input1", "input2", "weight"), (sizes, "float32", None))
    with at_most(1):
        assert not list(examine(_graph("aten.bilinear.default", given, {"bias": None}), report))
    assert report.declared.total() == 1
