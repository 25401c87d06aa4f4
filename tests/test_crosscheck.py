"""crosscheck=True compares fast capture with torch.export, whose graph is used if they differ."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tests.proof import module
from torch_ir import IR, CaptureWarning, extract_ir
from torch_ir.capture.crosscheck import first_difference

X = torch.zeros(2, 4)


def two_faced(self: Any, x: Tensor) -> Any:
    """Does something else where torch.export runs it."""
    return x.exp() if isinstance(x, FakeTensor) else x.sin()


def only_once(self: Any, x: Tensor) -> Any:
    """Cannot be captured by torch.export."""
    if isinstance(x, FakeTensor):
        raise RuntimeError("not on such a tensor")
    return x.sin()


def checked(model: nn.Module, **options: Any) -> tuple[IR, list[str]]:
    """Return the result and the warnings of a checked capture."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ir = extract_ir(model, (X,), strict=False, crosscheck=True, **options)
    return ir, [str(warning.message) for warning in caught if warning.category is CaptureWarning]


def test_equal_graphs_are_not_worth_a_word() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    ir, said = checked(model)
    assert said == []
    assert ir.to_json() == extract_ir(model, (X,), strict=False, capture="export").to_json()


def test_torch_export_rules() -> None:
    """The first lines that differ are named, and the graph is that of torch.export."""
    model = module(two_faced)
    assert [node.op_type for node in extract_ir(model, (X,), strict=False).nodes] == ["aten.sin.default"]
    ir, said = checked(model)
    assert [node.op_type for node in ir.nodes] == ["aten.exp.default"]
    [told] = said
    assert told.startswith("the recording differs from the graph of torch.export, which is used: ")
    exact, _, quick = told.partition("used: ")[2].partition(" / ")
    assert '"name": "exp"' in exact
    assert '"name": "sin"' in quick


def test_what_cannot_be_checked_is_said() -> None:
    """If torch.export fails, the recording is used."""
    ir, said = checked(module(only_once))
    assert [node.op_type for node in ir.nodes] == ["aten.sin.default"]
    [told] = said
    assert told.startswith("the recording could not be checked: ")
    assert "not on such a tensor" in told


def test_what_is_not_recorded_quickly_needs_no_check() -> None:
    """torch.export alone has captured it."""
    ir, said = checked(module(lambda self, x: torch.vmap(torch.sum)(x)))
    assert said == []
    assert ir.nodes


def test_a_warning_is_at_the_users_line() -> None:
    with pytest.warns(CaptureWarning, match="the recording differs from the graph") as caught:
        extract_ir(module(two_faced), (X,), strict=False, crosscheck=True)
    assert caught[0].filename == __file__


def test_first_difference() -> None:
    """Nothing where two files are equal; a line that one of them lacks is nothing, too."""
    one = extract_ir(nn.ReLU().eval(), (X,), strict=False)
    other = extract_ir(nn.Sequential(nn.ReLU(), nn.ReLU()).eval(), (X,), strict=False, model_name="ReLU")
    assert first_difference(one, one.clone()) == ""
    assert first_difference(one, other).count(" / ") == 1
