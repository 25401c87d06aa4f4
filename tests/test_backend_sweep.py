"""Back ends against eager: each result is the same, rounded, a listed deviation, or refused."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.backend_sweep.attributes import attribute_cases
from tests.backend_sweep.cases import Case, operator_cases
from tests.backend_sweep.coverage import SILENT, verdict
from tests.backend_sweep.functions import FLOATS, OPEN, function_cases, open_cases
from tests.backend_sweep.judging import ROUNDING, SAME, WRONG, judge
from tests.backend_sweep.pairs import pair_cases
from tests.backend_sweep.sweep import swept
from tests.needed import need_backend
from tests.proof import quiet

SAMPLE = [
    "y[-1] = 9", "x[i]", "y[i] = 9", "softshrink", "attention, masked", "var, std", "clone, no-ops", "empty",
    "batch norm, training", "cross entropy, smoothed", "scatter mean",
]  # fmt: skip
NOT_OPEN = {"x[::2]", "x[1:]", "x[:-1]"}  # torch.export does not keep their batch open at 1
OPENED = ["x[-2:]", "y[-1] = 9"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path))


@cache
def sampled() -> list[Case]:
    with quiet():
        return [*function_cases(SAMPLE), *open_cases(OPENED), *pair_cases(1, 240)]


@pytest.mark.parametrize("backend", ["onednn", "onnxruntime", "openvino"])
def test_a_sample_is_never_silently_wrong(backend: str) -> None:
    """Writes, masks, negative indices, some at an open batch of 1, 2 and 5, and pairs of operators."""
    need_backend(backend)
    with quiet():
        found = [outcome.record() for outcome in swept(backend, sampled())]
    kinds = Counter(map(verdict, found))
    assert kinds[SILENT] == 0, [record for record in found if verdict(record) == SILENT]
    assert kinds[SAME] + kinds[ROUNDING] > len(found) / 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onednn", "onnxruntime", "openvino", "iree", "inductor"])
def test_no_function_is_silently_wrong(backend: str) -> None:
    need_backend(backend)
    with quiet():
        cases = [*function_cases(), *open_cases()]
        found = [outcome.record() for outcome in swept(backend, cases)]
    assert [record for record in found if verdict(record) == SILENT] == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("backend", ["onednn", "onnxruntime", "openvino", "iree"])
def test_no_operator_of_a_sample_of_the_database_is_silently_wrong(backend: str, dtype: str) -> None:
    need_backend(backend)
    with quiet():
        found = [outcome.record() for outcome in swept(backend, list(operator_cases(dtype, 1, 48, 1)))]
    assert [record for record in found if verdict(record) == SILENT] == []


@cache
def varied(part: int, parts: int) -> list[Case]:
    with quiet():
        return list(attribute_cases(part, parts))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    ("part", "parts"), [(60, 160), *(pytest.param(part, 16, marks=pytest.mark.slow) for part in range(16))]
)
def test_no_argument_is_silently_ignored(backend: str, part: int, parts: int) -> None:
    """Arguments that are no tensors, off their defaults: a sample of the operators, or one of several parts."""
    need_backend(backend)
    with quiet():
        found = [outcome.record() for outcome in swept(backend, varied(part, parts))]
    assert [record for record in found if verdict(record) == SILENT] == []
    kinds = Counter(map(verdict, found))
    assert kinds[SAME] + kinds[ROUNDING] > 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onednn", "onnxruntime", "openvino"])
def test_no_pair_of_operators_is_silently_wrong(backend: str) -> None:
    need_backend(backend)
    with quiet():
        found = [outcome.record() for outcome in swept(backend, list(pair_cases(2, 16)))]
    assert [record for record in found if verdict(record) == SILENT] == []


def test_the_judge_tells_rounding_from_errors() -> None:
    """A unit in the last place passes, one in a thousand does not; integers, NaN and shapes must be equal."""
    x = torch.tensor([1.0, -3.0, float("nan")])
    assert judge([x], [x.clone()], None)[0] == SAME
    assert judge([x], [x * (1 + 2**-23)], None)[0] == ROUNDING
    for wrong in (x * 1.001, x.nan_to_num(), x[:2], x.double()):
        assert judge([x], [wrong], None)[0] == WRONG
    assert judge([torch.tensor([1, 2])], [torch.tensor([1, 3])], None)[0] == WRONG


@pytest.mark.slow
def test_every_function_is_captured() -> None:
    """Otherwise it would be silently missing from the sweep."""
    with quiet():
        names = {case.name for case in function_cases()}
        opened = {case.operator for case in open_cases()}
    assert set(FLOATS) <= names
    assert set(OPEN) - opened <= NOT_OPEN
