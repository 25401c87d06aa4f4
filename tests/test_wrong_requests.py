"""Arguments of other types or values than documented: one sentence of a typed error."""

from typing import Any

import pytest
import torch
from torch import nn

from torch_ir import (
    IR,
    ExecutionError,
    ExportError,
    GraphError,
    IRExecutor,
    SerializationError,
    deserialize_ir,
    export_model,
    extract_ir,
)
from torch_ir.ir import TensorData
from torch_ir.ops.tensor_data import to_tensor

X = torch.empty(2, 3, device="meta")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kwargs": [1]}, "kwargs must be a dict of keyword inputs, not list"),
        ({"time_limit": "10"}, "time_limit='10' must be a positive number"),
        ({"time_limit": float("nan")}, "time_limit=nan must be a positive number"),
        ({"fixed": 5}, "fixed takes a dict from arguments of forward to values, not int"),
        ({"fixed": {"input": [[float("nan")] * 3] * 2}}, "contains NaN"),
        ({"leaf": "Linear"}, r"leaf takes several classes or their names; .*\('Linear',\)"),
    ],
)
def test_options(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ExportError, match=problem):
        extract_ir(nn.Linear(3, 3, device="meta").eval(), (X,), **options)


def test_keyword_inputs_of_an_export() -> None:
    with pytest.raises(ExportError, match="kwargs must be a dict"):
        export_model(nn.Linear(3, 3, device="meta").eval(), (X,), kwargs=5)  # type: ignore[arg-type]  # the mistake


def test_a_level_and_blocks() -> None:
    """Both apply: before, the second was ignored."""
    blocks = [nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(4)]
    model, x = nn.Sequential(*blocks).eval(), torch.randn(2, 3)
    ir = extract_ir(model, (x,), strict=False, level="function", blocks="function")
    assert len(ir.nodes) == 4
    assert torch.equal(IRExecutor(ir, model.state_dict())(x), model(x))


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        ("a", "must be a tensor, not str"),
        (None, "must be a tensor, not NoneType"),
        ([1], "must be a tensor, not list"),
        (torch.ones(3), r"has shape \[3\]"),
        (1 << 70, "does not fit into int64"),
    ],
)
def test_numbers_that_vary(number: Any, problem: str) -> None:
    """An input that is a symbolic number."""
    sizes = ({0: torch.export.Dim.AUTO}, torch.export.Dim.DYNAMIC)
    run = IRExecutor(extract_ir(Scaled().eval(), (torch.empty(3, device="meta"), 5), dynamic_shapes=sizes), {})
    assert torch.equal(run(torch.ones(3), 7), torch.full((3,), 7.0))
    with pytest.raises(ExecutionError, match=problem):
        run(torch.ones(3), number)


def test_strides_of_a_constant_in_a_file() -> None:
    """They neither allocate memory without bound nor change values."""
    data = TensorData((2, 2), "int64", torch.arange(4).numpy().tobytes())
    assert to_tensor(data, (1, 2)).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(GraphError, match="spread it too far"):
        to_tensor(data, (1 << 40, 1))
    with pytest.raises(GraphError, match="elements with different values overlap"):
        to_tensor(data, (0, 1))
    same = TensorData((2, 2), "int64", torch.tensor([0, 1, 0, 1]).numpy().tobytes())
    assert to_tensor(same, (0, 1)).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("read", [IR.from_json, IR.parse, deserialize_ir])
@pytest.mark.parametrize("given", [b"{}", None, {}])
def test_what_is_read_is_text(read: Any, given: Any) -> None:
    """Bytes, as of a file that was opened as binary, are not."""
    with pytest.raises(SerializationError, match=f"expected text, found {type(given).__name__}"):
        read(given)
