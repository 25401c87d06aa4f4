"""Encoders that remove padding with nested tensors in eager mode: the graph returns zeros there, too."""

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_ir import CaptureWarning, IRExecutor, extract_ir, verify_ir_with_state_dict

pytestmark = pytest.mark.usefixtures("_seeded")
X = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(3))
RIGHT = torch.tensor([[False, False, True, True], [False] * 4, [False, True, True, True]])
LEFT = RIGHT.flip(1)
HOLES = torch.tensor([[False, True, False, True], [False] * 4, [True, False, True, True]])
PLAIN = {"enable_nested_tensor": False}
EMPTY = torch.tensor([[True] * 4, [False] * 4, [False, True, True, True]])


def _encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(4), **options).eval()


def _check(model: nn.Module, ir: Any, masks: dict[str, Any]) -> None:
    """Compare with eager mode without gradients."""
    with torch.no_grad():
        expected = model(X, **masks)
    found = IRExecutor(ir, model.state_dict())(X, **masks)
    assert torch.allclose(found, expected, atol=1e-5, equal_nan=True)


CAPTURES = ("auto", "export", "record")
OPTIONS: tuple[dict[str, Any], ...] = ({}, PLAIN, {"mask_check": False})
MASKS: tuple[tuple[str, ...], ...] = (("src_key_padding_mask",), ("mask",), ("mask", "src_key_padding_mask"), ())
# Any two values together in one case, and all three where every sweep is in full.
IN_TURN = [
    pytest.param(CAPTURES[i], OPTIONS[j], MASKS[k], marks=() if (i + j + k) % 3 == 0 else pytest.mark.slow)
    for i, j, k in itertools.product(range(3), range(3), range(4))
]


@pytest.mark.parametrize(("capture", "options", "names"), IN_TURN)
def test_padded_positions_are_as_in_eager_mode(capture: str, options: dict[str, Any], names: tuple[str, ...]) -> None:
    """Captured for padding on the right; run with padding on both sides and in between, and with full sequences."""
    model = _encoder(**options)
    given = {"src_key_padding_mask": RIGHT, "mask": torch.ones(4, 4).triu(1).bool()}
    kwargs: dict[str, Any] = {"is_causal": False, **{name: given[name] for name in names}}
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        ir = extract_ir(model, (X,), kwargs=kwargs, strict=False, capture=capture)
    assert verify_ir_with_state_dict(ir, model.state_dict(), model, (X,), test_kwargs=kwargs)[0]
    padding = (RIGHT, LEFT, HOLES, EMPTY, torch.zeros(3, 4).bool()) if "src_key_padding_mask" in names else (None,)
    for mask in padding:
        # a row that is wholly masked is NaN in eager mode, as docs/reliability.md says
        if mask is not RIGHT and mask is not None and mask.any() and ("mask" in names or options == PLAIN):
            continue
        _check(model, ir, {**kwargs, "src_key_padding_mask": mask} if mask is not None else kwargs)


@pytest.mark.parametrize("capture", ["auto", "export", "record"])
def test_masks_of_numbers_are_as_in_eager_mode(capture: str) -> None:
    """Nested tensors remove every position whose number is not 0; other layers add the number to the scores."""
    model = _encoder()
    numbers = RIGHT * -1.0
    ir = extract_ir(model, (X,), kwargs={"src_key_padding_mask": numbers}, strict=False, capture=capture)
    for mask in (numbers, RIGHT * -1e9, HOLES * -1.0):
        _check(model, ir, {"src_key_padding_mask": mask})


@pytest.mark.parametrize("capture", ["auto", "export", "record"])
@pytest.mark.parametrize("first", [False, True])
def test_numbers_in_masks_of_a_layer_are_as_in_eager_mode(capture: str, first: bool) -> None:
    """The fused kernel of a layer takes every number that is not 0 as masked; a layer that is not fused adds it."""
    given = torch.tensor([[0.0, 0.5, -1.0, 2.0], [0.0, 0.0, -3.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    for heads in (2, 1):  # one head is not fused
        model = nn.TransformerEncoderLayer(4, heads, 8, batch_first=True, norm_first=first).eval()
        for mask in ({"src_mask": given}, {"src_key_padding_mask": given[:3]}):
            ir = extract_ir(model, (X,), kwargs=mask, strict=False, capture=capture)
            _check(model, ir, mask)


def test_a_layer_may_be_used_several_times() -> None:
    """Only its last call is the end of the encoder, and an encoder may be called twice."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = _encoder()
            self.encoder.layers[1] = self.encoder.layers[0]

        def forward(self, x: Tensor, src_key_padding_mask: Tensor) -> Tensor:
            once = self.encoder(x, src_key_padding_mask=src_key_padding_mask)
            return self.encoder(once + x, None, src_key_padding_mask) + self.encoder(x)

    model = Twice().eval()
    ir = extract_ir(model, (X,), kwargs={"src_key_padding_mask": RIGHT}, strict=False)
    _check(model, ir, {"src_key_padding_mask": RIGHT})
    assert not model.encoder._forward_pre_hooks
    assert not model.encoder.layers[0]._forward_hooks


def test_a_graph_that_computes_the_padding_fails_verification() -> None:
    """As captures of torch.export itself do."""
    model = _encoder()
    kwargs = {"src_key_padding_mask": RIGHT}
    plain = _encoder(enable_nested_tensor=False)
    plain.load_state_dict(model.state_dict())
    ir = extract_ir(plain, (X,), kwargs=kwargs, strict=False)
    assert not verify_ir_with_state_dict(ir, model.state_dict(), model, (X,), test_kwargs=kwargs)[0]
