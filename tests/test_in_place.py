"""Inputs that a graph changes are updated in their own memory, by the executor and by Inductor."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_ir
from torch_ir import IR, IRExecutor
from torch_ir.run.input_updates import input_updates

CACHE = """
graph Step(cache: float32[4, 3], row: float32[1, 3], at: int64[1]) {
  new: float32[4, 3] = aten.index_copy.default(self=cache, dim=0, index=at, source=row)
  total: float32[3] = aten.sum.dim_IntList(self=new, dim=[0], keepdim=False, dtype=None)
  cache := new
  return total
}
"""
READ_AFTER = """
graph Step(cache: float32[4, 3], row: float32[1, 3], at: int64[1]) {
  new: float32[4, 3] = aten.index_copy.default(self=cache, dim=0, index=at, source=row)
  difference: float32[4, 3] = aten.sub.Tensor(self=new, other=cache, alpha=1)
  cache := new
  return difference
}
"""
RETURNED = """
graph Step(cache: float32[4, 3], row: float32[1, 3], at: int64[1]) {
  new: float32[4, 3] = aten.index_copy.default(self=cache, dim=0, index=at, source=row)
  turned: float32[3, 4] strides [1, 3] = aten.t.default(self=new)
  cache := new
  return turned
}
"""
OTHER_ORDER = """
graph Step(cache: float32[3], row: float32[3]) {
  new: float32[3] = aten.sub.Tensor(other=cache, self=row, alpha=1)
  double: float32[3] = aten.add.Tensor(self=row, other=row, alpha=1)
  cache := new
  return double
}
"""
OTHER_TYPES = """
graph Step(cache: float32[3]) {
  new: float32[3] = aten.pow.Scalar(self=2, exponent=cache)
  total: float32[] = aten.sum.default(self=new, dtype=None)
  cache := new
  return total
}
"""
SWAPPED = """
graph Step(one: float32[2], other: float32[2]) {
  total: float32[2] = aten.add.Tensor(self=one, other=other, alpha=1)
  one := other
  other := one
  return total
}
"""


def values() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 3), torch.randn(1, 3), torch.tensor([2])]


def expected() -> Tensor:
    cache, row, at = values()
    cache[at] = row
    return cache


def run(text: str, given: Sequence[Any], backend: str) -> tuple[Any, ...]:
    ir = IR.parse(text)
    if backend == "executor":
        return IRExecutor(ir, {}, in_place=True).run(given).outputs
    return torch_ir.compile(ir, {}, backend=backend, verify=False).run(given)


@pytest.mark.parametrize("backend", ["executor", "torch", "inductor"])
def test_an_input_is_updated_in_its_own_memory(backend: str) -> None:
    given = values()
    place = given[0].data_ptr()
    (total,) = run(CACHE, given, backend)
    assert given[0].data_ptr() == place
    torch.testing.assert_close(given[0], expected(), rtol=0, atol=0)
    torch.testing.assert_close(total, expected().sum(0))


def test_the_executor_writes_without_a_copy() -> None:
    """The value that the graph computes is the input itself."""
    given = values()
    outcome = IRExecutor(IR.parse(CACHE), {}, in_place=True).run(given)
    assert [value is given[0] for value in outcome.mutations.values()] == [True]


@pytest.mark.parametrize("text", [READ_AFTER, RETURNED], ids=["read after the write", "returned"])
@pytest.mark.parametrize("backend", ["executor", "torch", "inductor"])
def test_what_is_still_read_is_not_overwritten_early(text: str, backend: str) -> None:
    """The old value that a later node reads, and the new one that the caller receives, are right."""
    assert not input_updates(IR.parse(text))
    given, before = values(), values()[0]
    (output,) = run(text, given, backend)
    wanted = expected() - before if text == READ_AFTER else expected().t()
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(given[0], expected(), rtol=0, atol=0)
    given[0].zero_()
    torch.testing.assert_close(output, wanted)


@pytest.mark.parametrize("backend", ["executor", "torch"])
def test_an_operator_that_would_write_to_another_argument_makes_a_new_tensor(backend: str) -> None:
    """`cache := row - cache` cannot be `row.sub_(cache)`, in whatever order its arguments are written."""
    cache, row = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 5.0, 5.0])
    (double,) = run(OTHER_ORDER, [cache, row], backend)
    assert (cache.tolist(), row.tolist(), double.tolist()) == ([4.0, 3.0, 2.0], [5.0] * 3, [10.0] * 3)


@pytest.mark.parametrize("backend", ["executor", "torch"])
def test_an_operator_whose_variant_takes_other_types_makes_a_new_tensor(backend: str) -> None:
    """`pow_.Scalar` raises a tensor to a number, `pow.Scalar` a number to a tensor."""
    cache = torch.tensor([1.0, 2.0, 3.0])
    (total,) = run(OTHER_TYPES, [cache], backend)
    assert (cache.tolist(), total.item()) == ([2.0, 4.0, 8.0], 14.0)


@pytest.mark.parametrize("backend", ["executor", "torch", "inductor"])
def test_two_inputs_can_swap_their_values(backend: str) -> None:
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    (total,) = run(SWAPPED, [one, other], backend)
    assert total.tolist() == [4.0, 6.0]
    assert (one.tolist(), other.tolist()) == ([3.0, 4.0], [1.0, 2.0])


def test_without_the_option_the_executor_writes_to_no_input() -> None:
    given = values()
    outcome = IRExecutor(IR.parse(CACHE), {}).run(given)
    torch.testing.assert_close(given, values(), rtol=0, atol=0)
    torch.testing.assert_close(next(iter(outcome.mutations.values())), expected(), rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["torch", "inductor"])
def test_an_input_with_other_strides_is_updated(backend: str) -> None:
    given = values()
    given[0] = given[0].t().contiguous().t()
    run(CACHE, given, backend)
    torch.testing.assert_close(given[0], expected(), rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["torch", "inductor"])
def test_a_bound_call_repeats_on_the_same_tensors(backend: str) -> None:
    """The caller changes inputs between calls; each call sees them and updates the cache."""
    cache, row, at = values()
    again = torch_ir.compile(IR.parse(CACHE), {}, backend=backend, verify=False).bound([cache, row, at])
    wanted = cache.clone()
    for index in range(3):
        at.fill_(index)
        row.fill_(index + 1.0)
        wanted[index] = index + 1.0
        torch.testing.assert_close(again()[0], wanted.sum(0))
    torch.testing.assert_close(cache, wanted, rtol=0, atol=0)


class Counting(nn.Module):
    """Changes an input and a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x.mul_(2)
        return x + self.calls


def test_a_captured_model_that_writes_to_its_input_and_a_buffer() -> None:
    """The compiled graph writes as the model does, and a check against the executor leaves no traces."""
    model = Counting().eval()
    ir = torch_ir.extract_ir(model, (torch.ones(2),), strict=False)
    compiled = torch_ir.compile(ir, model.state_dict(), backend="torch", verify=True)
    x, own = torch.ones(2), torch.ones(2)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(own))
        torch.testing.assert_close(x, own)


@pytest.mark.parametrize("shown", ["cache", "view"])
@pytest.mark.parametrize("backend", ["executor", "torch"])
def test_an_output_that_is_the_old_value_stays_so(backend: str, shown: str) -> None:
    """The old value of an input, or a part of it, is copied before the input is written."""
    ir = IR.parse(f"""
graph Step(cache: float32[3]) {{
  view: float32[2] = aten.slice.Tensor(self=cache, dim=0, start=1, end=3, step=1)
  new: float32[3] = aten.add.Tensor(self=cache, other=1, alpha=1)
  cache := new
  return {shown}
}}
""")
    cache = torch.zeros(3)
    run = IRExecutor(ir, {}, in_place=True) if backend == "executor" else torch_ir.compile(ir, {}, backend=backend)
    assert run(cache).tolist() == [0.0] * (3 if shown == "cache" else 2)
    assert cache.tolist() == [1.0] * 3
