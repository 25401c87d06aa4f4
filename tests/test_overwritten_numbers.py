"""Numbers that Python reads from a tensor, before and after another view of the same memory is written to."""

import pytest
import torch
from torch import Tensor, nn

from tests.proof import module
from torch_ir import ExecutionError, ExportError, IRExecutor, extract_ir

POSITIVE, NEGATIVE = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, -3.0])
pytestmark = pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")


def of_base(self: nn.Module, x: Tensor) -> Tensor:
    literal = torch.tensor([0.0])
    view = literal[0]
    literal += x.sum()
    return x * 2 if view.item() > 0 else x * 3


def of_view(self: nn.Module, x: Tensor) -> Tensor:
    literal = torch.tensor([0.0])
    view = literal[0]
    view += x.sum()
    return x * 2 if literal.item() > 0 else x * 3


def by_copy(self: nn.Module, x: Tensor) -> Tensor:
    literal = torch.tensor([0.0])
    literal.view(1).copy_(x.sum())
    return x * 2 if literal > 0 else x * 3


def by_literals(self: nn.Module, x: Tensor) -> Tensor:
    """Only known values are written, so that the number is known as well."""
    literal = torch.tensor([0.0])
    view = literal[0]
    literal += 1
    return x * 2 if view.item() > 0 else x * 3


def read_twice(self: nn.Module, x: Tensor) -> Tensor:
    whole = x.clone()
    view = whole[0]
    first = view.item()
    whole.add_(1)
    return x * first + view.item()


def branched_twice(self: nn.Module, x: Tensor) -> Tensor:
    signs = x > 0
    view = signs[0]
    y = x + 1 if view else x
    signs.logical_not_()
    return y + 10 if view else y


@pytest.mark.parametrize("capture", ["auto", "export", "record"])
@pytest.mark.parametrize("is_real", [True, False])
@pytest.mark.parametrize("forward", [of_base, of_view, by_copy, by_literals, read_twice, branched_twice])
def test_a_number_is_the_one_that_eager_reads(forward: object, is_real: bool, capture: str) -> None:
    """Each graph equals eager on inputs for either branch, or is refused, at capture or by a guard."""
    model = module(forward=forward)
    try:
        ir = extract_ir(model, (POSITIVE if is_real else POSITIVE.to("meta"),), strict=False, capture=capture)
    except ExportError:
        assert forward is not by_literals
        return
    run = IRExecutor(ir, {})
    for x in (POSITIVE, NEGATIVE):
        try:
            found = run(x)
        except ExecutionError:  # a guard
            assert forward is not by_literals
            continue
        assert torch.equal(found, model(x))
