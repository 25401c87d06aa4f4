"""Encoders whose eager mode depends on gradients: a warning says so."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from torch_ir import IRExecutor, extract_ir

pytestmark = pytest.mark.usefixtures("_seeded")


@pytest.mark.parametrize("capture", ["auto", "export", "record"])
@pytest.mark.parametrize(("nested", "masks", "warns"), [
    (True, {"src_key_padding_mask"}, True),
    (False, {"src_key_padding_mask"}, False),
    (True, {"mask"}, False),
    (True, {"mask", "src_key_padding_mask"}, False),
    (True, set(), False),
])  # fmt: skip
def test_encoders_that_return_zeros_at_padding_only_without_gradients(
    capture: str, nested: bool, masks: set[str], warns: bool
) -> None:
    """With nested tensors, eager mode without gradients returns zeros where the graph has numbers: it is said."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    x = torch.randn(2, 4, 4)
    given = {
        "src_key_padding_mask": torch.tensor([[False, False, True, True], [False] * 4]),
        "mask": torch.ones(4, 4).triu(1).bool(),
    }
    kwargs: dict[str, Any] = {"is_causal": False, **{name: given[name] for name in sorted(masks)}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ir = extract_ir(model, (x,), kwargs=kwargs, strict=False, capture=capture)
    told = [str(warning.message) for warning in caught if "enable_nested_tensor=False" in str(warning.message)]
    assert len(told) == warns
    with torch.no_grad():
        expected = model(x, **kwargs)
    found = IRExecutor(ir, model.state_dict())(x, **kwargs)
    assert torch.allclose(found, expected, atol=1e-5) is not warns
