"""Every operator of the architectures has a FLOP formula, moves bytes only, or is listed as not counted."""

import random

import pytest
import torch
from torch.utils.flop_counter import flop_registry

from tests.architectures import NOT_CAPTURED, Architecture, architectures
from tests.architectures.operators import operators_of, stored_operators
from torch_ir.analysis.cost_model.flop_formulas import FORMULAS
from torch_ir.analysis.cost_model.traffic import SOMETIMES_VIEWS, VIEWS
from torch_ir.analysis.cost_model.uncounted import is_uncounted
from torch_ir.ir.graph.operator_sets import base_name

# The docs name these: no formula counts their arithmetic.
NOT_COUNTED = {"aten.cdist", "aten.fft_fftn", "aten.fft_irfft", "aten.fft_rfft"}
# Element by element, reductions, copies, look-ups, sorting, pooling, interpolation and normalisation: no contraction.
BYTES_ONLY = frozenset(
    """
    __and__ __or__ _assert_scalar _assert_tensor_metadata _is_all_true _to_copy _upsample_bilinear2d_aa _weight_norm abs
    acos adaptive_avg_pool1d adaptive_avg_pool2d add all amax any arange argmax argmin argsort avg_pool1d avg_pool2d
    batch_norm bernoulli bitwise_not cat ceil clamp clamp_min clip clone col2im concat concatenate cos cumsum diff div
    dropout elu embedding empty empty_like eq erf exp expm1 eye fill flip floor floor_divide full full_like gather ge
    gelu glu greater grid_sampler group_norm gt hardswish hardtanh histc im2col index index_add index_put index_select
    item layer_norm le leaky_relu lift_fresh_copy linalg_norm linalg_vector_norm linspace log log1p log_sigmoid
    logical_and logical_not logsumexp lt masked_fill masked_scatter max max_pool1d max_pool2d maximum mean min minimum
    mse_loss mul multiply ne neg new_empty new_full new_ones new_zeros nonzero one_hot ones ones_like pad pixel_shuffle
    polar pow prod rand randint reciprocal relu remainder repeat repeat_interleave rms_norm roll round rsqrt rsub
    scatter scatter_reduce select_scatter sigmoid sign silu sin slice_scatter softmax softplus sort sqrt square stack
    sub sum tanh tile topk tril triu uniform upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest2d
    var where zeros zeros_like
    """.split()  # noqa: SIM905  # one name per line would be 150 lines
)


def test_every_operator_of_the_architectures_has_a_formula_or_is_listed() -> None:
    bases = {base_name(op_type) for op_type in stored_operators()}
    assert len(bases) > 200
    assert {base for base in bases if is_uncounted(base)} == NOT_COUNTED
    moving = {f"aten.{name}" for name in BYTES_ONLY} | VIEWS | SOMETIMES_VIEWS
    known = {base for base in bases if base in FORMULAS or base.startswith(("torch_ir.", "higher_order."))}
    assert bases - known - moving - NOT_COUNTED == set()


def test_what_torch_counts_is_counted_or_named() -> None:
    """torch's counter has a formula for each of these operators."""
    counted = {str(packet) for packet in flop_registry if str(packet).startswith("aten.")}
    assert len(counted) > 15
    silent = {name for name in counted if "backward" not in name and name not in FORMULAS and not is_uncounted(name)}
    assert silent == set()


def test_the_arithmetic_of_torch_is_not_passed_over() -> None:
    """Operators whose composite implementation calls a matrix product are counted or named."""
    silent = []
    for name in (
        "linalg_matmul",
        "chain_matmul",
        "linalg_multi_dot",
        "kron",
        "cdist",
        "linalg_inv",
        "stft",
        "fft_rfft",
    ):
        assert hasattr(torch.ops.aten, name)
        if f"aten.{name}" not in FORMULAS and not is_uncounted(f"aten.{name}.default"):
            silent.append(name)
    assert silent == []
    assert not any(map(is_uncounted, ("aten.fft_fftshift.default", "aten.linalg_vector_norm.default")))


def _sample() -> list[Architecture]:
    chosen = [each for each in architectures() if each.name not in NOT_CAPTURED]
    return random.Random(5).sample(chosen, 1)


@pytest.mark.parametrize("architecture", _sample(), ids=lambda each: each.name)
def test_the_stored_operators_are_those_of_a_sample(architecture: Architecture) -> None:
    assert operators_of(architecture) <= set(stored_operators())


@pytest.mark.slow
@pytest.mark.parametrize("architecture", architectures(), ids=lambda each: each.name)
def test_the_stored_operators_are_those_of_every_architecture(architecture: Architecture) -> None:
    if architecture.name not in NOT_CAPTURED:
        assert operators_of(architecture) <= set(stored_operators())
