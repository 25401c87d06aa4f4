"""A wrong table of weight names in a version 0 file is rejected, not ignored."""

from __future__ import annotations

from typing import Any

import pytest

from torch_ir import IR
from torch_ir.errors import SerializationError

_NAMES = {"p_fc_weight": "fc.weight", "p_fc_bias": "fc.bias"}


def _tensor(name: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "shape": [*shape], "dtype": "float32"}


def _document(names: dict[str, Any]) -> dict[str, Any]:
    x, y = _tensor("x", 1, 2), _tensor("linear", 1, 2)
    inputs = [x, _tensor("p_fc_weight", 2, 2), _tensor("p_fc_bias", 2)]
    node = {"name": "linear", "op_type": "aten.linear.default", "inputs": inputs, "outputs": [y], "attrs": {}}
    weights = [_tensor("fc.weight", 2, 2), _tensor("fc.bias", 2)]
    return {
        "nodes": [node], "graph_inputs": [x], "graph_outputs": [y], "weights": weights, "weight_name_mapping": names,
        "model_name": "Net",
    }  # fmt: skip


@pytest.mark.parametrize("names", [_NAMES, {}, {"p_fc_weight": "fc.weight"}], ids=["all", "none", "some"])
def test_names_that_are_right(names: dict[str, Any]) -> None:
    """A missing entry has torch.export's name."""
    assert dict(IR.from_dict(_document(names)).weight_name_mapping) == _NAMES


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({**_NAMES, "p_fc_bias": "fc.bais"}, r"there is no weight 'fc\.bais'; did you mean 'fc\.bias'\?"),
        ({**_NAMES, "p_other": "gone"}, "there is no weight 'gone'"),
        ({**_NAMES, "other": "fc.bias"}, r"weight 'fc\.bias' has two names, 'p_fc_bias' and 'other'"),
        ({"other": "fc.bias", **_NAMES}, r"weight 'fc\.bias' has two names, 'other' and 'p_fc_bias'"),
        ({**_NAMES, "p_fc_bias": 3}, "expected a string"),
        ({**_NAMES, "p_fc_bias": None}, "expected a string"),
        ({key: name for name, key in _NAMES.items()}, "there is no weight 'p_fc_weight'"),
    ],
)
def test_names_that_are_wrong(names: dict[str, Any], told: str) -> None:
    """The error names the entry."""
    with pytest.raises(SerializationError, match=told) as caught:
        IR.from_dict(_document(names))
    assert caught.value.path is not None
    assert caught.value.path.startswith("$.weight_name_mapping.")
