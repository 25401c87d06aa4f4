"""In-place calls become functional calls, and every consumer reads the value at that point of the program."""
# ruff: noqa: E501  # a line of a graph's text is one line

import random
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.graphs import tensor
from tests.proof import module, quiet
from tests.write_programs import Program, inputs, random_lines
from torch_ir import IR, ConversionError, IRExecutor, extract_ir
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import NotCoveredError
from torch_ir.capture.program.functional_writes import UnfollowedWriteError, Writes, without_writes
from torch_ir.ir import OpNode

X = torch.arange(12.0).reshape(3, 4)


def check_rule(forward: Callable[..., Any], after: str, **parts: Any) -> IR:
    """In both capture methods, the graph has this text, and the model's results and mutations."""
    model = module(forward, **parts)
    quick = record_fast(model, (X.clone(),), {})
    exact = extract_ir(model, (X.clone(),), strict=False, capture="export", model_name="")
    assert str(quick).strip() == dedent(after).strip()
    assert quick.to_json() == exact.to_json()
    assert difference(quick, model, (X,)) == ""
    return quick


def difference(ir: IR, model: nn.Module, given: tuple[Tensor, ...]) -> str:
    """Where a graph and its model differ in one bit: in results, and in inputs and buffers afterwards."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    executor = IRExecutor(ir, before)
    outcome = executor.run([tensor.clone() for tensor in given])
    changed = [tensor.clone() for tensor in given]
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(model(*changed))
    if len(wanted) != len(outcome.outputs):
        return f"{len(outcome.outputs)} results, not {len(wanted)}"
    got = [outcome.mutations.get(tensor, old) for tensor, old in zip(executor.ir.graph_inputs, given, strict=True)]
    pairs = {f"result {index}": pair for index, pair in enumerate(zip(wanted, outcome.outputs, strict=True))}
    pairs |= {f"input {index}": pair for index, pair in enumerate(zip(changed, got, strict=True))}
    pairs |= {key: (model.get_buffer(key), executor.state.get(key, old)) for key, old in before.items()}
    return "; ".join(f"{name}: {one} / {other}" for name, (one, other) in pairs.items() if not _is_equal(one, other))


def _is_equal(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def one_part(self: Any, x: Tensor) -> Any:
    """Where a part is copied to, the whole has the new part put in."""
    y = x * 2
    y[1:].copy_(x[:2])
    return y


def one_row(self: Any, x: Tensor) -> Any:
    """An index that is written to."""
    y = x * 2
    y[0].mul_(3)
    return y


def nested(self: Any, x: Tensor) -> Any:
    """A view of a view is put back step by step."""
    y = x * 2
    y[1:].t()[0].add_(1)
    return y


def chain(self: Any, x: Tensor) -> Any:
    """Calls in a row pass the value on; each is named as its operator."""
    y = x * 2
    y.add_(1).mul_(2)
    y.relu_()
    return y


def buffer(self: Any, x: Tensor) -> Any:
    """A buffer that is written to gets a new value."""
    self.state.mul_(2)
    return self.state + x


def changed_input(self: Any, x: Tensor) -> Any:
    """So does an input."""
    x[:, 0].zero_()
    return x + 1


def view_read_later(self: Any, x: Tensor) -> Any:
    """A view that is read after a write to its base is computed again."""
    y = x * 2
    part = y[0]
    y.add_(1)
    return part + 1


def pieces(self: Any, x: Tensor) -> Any:
    """A piece of a split is a slice; the other pieces are computed again."""
    y = x * 2
    a, b = y.split([1, 3], 1)
    a.fill_(7)
    return b + 1, y


def transposed(self: Any, x: Tensor) -> Any:
    """A transposed view is transposed back; a copy is not followed."""
    y = x * 2
    y.t().copy_(x.t())
    return y


def cast(self: Any, x: Tensor) -> Any:
    """A copy that casts stays."""
    y = x * 2
    y.copy_(x.to(torch.int64))
    return y


def diagonal(self: Any, x: Tensor) -> Any:
    """A diagonal that is written to."""
    y = x * 2
    y.diagonal().fill_(1)
    return y


def whole(self: Any, x: Tensor) -> Any:
    """Views of all elements in order: the written value is the new value."""
    y = x * 2
    z = F.dropout(y, 0.5, False).detach().view(3, 4)
    z.add_(1)
    return y


def mask(self: Any, x: Tensor) -> Any:
    """Elements that a mask chooses."""
    y = x * 2
    y[x > 3] = 0.0
    return y


def overlapping(self: Any, x: Tensor) -> Any:
    """Two views of the same elements see each other's writes."""
    y = x * 2
    a = y[:2]
    b = y[1:]
    a.add_(1)
    b.mul_(2)
    return a


def wide(self: Any, x: Tensor) -> Any:
    """An expanded view that repeats nothing is followed."""
    y = x * 2
    y.expand(1, 3, 4)[0].add_(1)
    return y


RULES: dict[Callable[..., Any], str] = {
    one_part: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          slice_2: float32[2, 4] = aten.slice.Tensor(self=x, dim=0, start=0, end=2, step=1)
          slice_scatter: float32[3, 4] = aten.slice_scatter.default(self=mul, src=slice_2, dim=0, start=1, end=9223372036854775807, step=1)
          return slice_scatter
        }
    """,
    one_row: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          select: float32[4] = aten.select.int(self=mul, dim=0, index=0)
          mul_1: float32[4] = aten.mul.Tensor(self=select, other=3)
          select_scatter: float32[3, 4] = aten.select_scatter.default(self=mul, src=mul_1, dim=0, index=0)
          return select_scatter
        }
    """,
    nested: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          slice_1: float32[2, 4] = aten.slice.Tensor(self=mul, dim=0, start=1, end=9223372036854775807, step=1)
          t: float32[4, 2] strides [1, 4] = aten.t.default(self=slice_1)
          select: float32[2] strides [4] = aten.select.int(self=t, dim=0, index=0)
          add: float32[2] = aten.add.Tensor(self=select, other=1, alpha=1)
          select_scatter: float32[4, 2] strides [1, 4] = aten.select_scatter.default(self=t, src=add, dim=0, index=0)
          t_1: float32[2, 4] = aten.t.default(self=select_scatter)
          slice_scatter: float32[3, 4] = aten.slice_scatter.default(self=mul, src=t_1, dim=0, start=1, end=9223372036854775807, step=1)
          return slice_scatter
        }
    """,
    chain: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          add: float32[3, 4] = aten.add.Tensor(self=mul, other=1, alpha=1)
          mul_1: float32[3, 4] = aten.mul.Tensor(self=add, other=2)
          relu: float32[3, 4] = aten.relu.default(self=mul_1)
          return relu
        }
    """,
    buffer: """
        graph(x: float32[3, 4]) {
          buffer b_state: float32[3, 4] = "state"
          mul: float32[3, 4] = aten.mul.Tensor(self=b_state, other=2)
          add: float32[3, 4] = aten.add.Tensor(self=mul, other=x, alpha=1)
          b_state := mul
          return add
        }
    """,
    changed_input: """
        graph(x: float32[3, 4]) {
          select: float32[3] strides [4] = aten.select.int(self=x, dim=1, index=0)
          zero: float32[3] = aten.zero.default(self=select)
          select_scatter: float32[3, 4] = aten.select_scatter.default(self=x, src=zero, dim=1, index=0)
          add: float32[3, 4] = aten.add.Tensor(self=select_scatter, other=1, alpha=1)
          x := select_scatter
          return add
        }
    """,
    view_read_later: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          add_1: float32[3, 4] = aten.add.Tensor(self=mul, other=1, alpha=1)
          select_1: float32[4] = aten.select.int(self=add_1, dim=0, index=0)
          add: float32[4] = aten.add.Tensor(self=select_1, other=1, alpha=1)
          return add
        }
    """,
    pieces: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          split_with_sizes_0: float32[3, 1] strides [4, 1], split_with_sizes_1: float32[3, 3] strides [4, 1] = aten.split_with_sizes.default(self=mul, split_sizes=[1, 3], dim=1)
          fill: float32[3, 1] = aten.fill.Scalar(self=split_with_sizes_0, value=7)
          slice_scatter: float32[3, 4] = aten.slice_scatter.default(self=mul, src=fill, dim=1, start=0, end=1, step=1)
          split_with_sizes_2_0: float32[3, 1] strides [4, 1], split_with_sizes_2_1: float32[3, 3] strides [4, 1] = aten.split_with_sizes.default(self=slice_scatter, split_sizes=[1, 3], dim=1)
          add: float32[3, 3] = aten.add.Tensor(self=split_with_sizes_2_1, other=1, alpha=1)
          return add, slice_scatter
        }
    """,
    transposed: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          t_1: float32[4, 3] strides [1, 4] = aten.t.default(self=x)
          t_2: float32[3, 4] = aten.t.default(self=t_1)
          return t_2
        }
    """,
    cast: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          aten._assert_tensor_metadata.default(a=x, size=None, stride=None, dtype=float32, device=cpu, layout=strided) as _assert_tensor_metadata_default
          to: int64[3, 4] = aten.to.dtype(self=x, dtype=int64, non_blocking=False, copy=False, memory_format=None)
          copy: float32[3, 4] = aten.copy.default(self=mul, src=to, non_blocking=False)
          return copy
        }
    """,
    diagonal: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          diagonal: float32[3] strides [5] = aten.diagonal.default(self=mul, offset=0, dim1=0, dim2=1)
          fill: float32[3] = aten.fill.Scalar(self=diagonal, value=1)
          diagonal_scatter: float32[3, 4] = aten.diagonal_scatter.default(self=mul, src=fill, offset=0, dim1=0, dim2=1)
          return diagonal_scatter
        }
    """,
    whole: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          dropout: float32[3, 4] = aten.dropout.default(input=mul, p=0.5, train=False)
          detach: float32[3, 4] = aten.detach.default(self=dropout)
          view: float32[3, 4] = aten.view.default(self=detach, size=[3, 4])
          add: float32[3, 4] = aten.add.Tensor(self=view, other=1, alpha=1)
          reshape: float32[3, 4] = aten.reshape.default(self=add, shape=[3, 4])
          return reshape
        }
    """,
    mask: """
        graph(x: float32[3, 4]) {
          constant c_lifted_tensor_0: float32[] = "lifted_tensor_0" values [0.0]
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          gt: bool[3, 4] = aten.gt.Scalar(self=x, other=3)
          lift_fresh_copy: float32[] = aten.lift_fresh_copy.default(self=c_lifted_tensor_0)
          index_put: float32[3, 4] = aten.index_put.default(self=mul, indices.0=gt, values=lift_fresh_copy, accumulate=False)
          return index_put
        }
    """,
    overlapping: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          slice_1: float32[2, 4] = aten.slice.Tensor(self=mul, dim=0, start=0, end=2, step=1)
          add: float32[2, 4] = aten.add.Tensor(self=slice_1, other=1, alpha=1)
          slice_scatter: float32[3, 4] = aten.slice_scatter.default(self=mul, src=add, dim=0, start=0, end=2, step=1)
          slice_3: float32[2, 4] = aten.slice.Tensor(self=slice_scatter, dim=0, start=1, end=9223372036854775807, step=1)
          mul_1: float32[2, 4] = aten.mul.Tensor(self=slice_3, other=2)
          slice_scatter_1: float32[3, 4] = aten.slice_scatter.default(self=slice_scatter, src=mul_1, dim=0, start=1, end=9223372036854775807, step=1)
          slice_4: float32[2, 4] = aten.slice.Tensor(self=slice_scatter_1, dim=0, start=0, end=2, step=1)
          return slice_4
        }
    """,
    wide: """
        graph(x: float32[3, 4]) {
          mul: float32[3, 4] = aten.mul.Tensor(self=x, other=2)
          expand: float32[1, 3, 4] = aten.expand.default(self=mul, size=[1, 3, 4], implicit=False)
          select: float32[3, 4] = aten.select.int(self=expand, dim=0, index=0)
          add: float32[3, 4] = aten.add.Tensor(self=select, other=1, alpha=1)
          select_scatter: float32[1, 3, 4] = aten.select_scatter.default(self=expand, src=add, dim=0, index=0)
          reshape: float32[3, 4] = aten.reshape.default(self=select_scatter, shape=[3, 4])
          return reshape
        }
    """,
}


@pytest.mark.parametrize("forward", [pytest.param(forward, id=forward.__name__) for forward in RULES])
def test_rule(forward: Callable[..., Any]) -> None:
    check_rule(forward, RULES[forward], buffers={"state": X.clone()} if forward is buffer else {})


# -- what is not followed ---------------------------------------------------------------------------------------------


def reinterpreted(self: Any, x: Tensor) -> Any:
    y = x * 2
    y.view(torch.int32).bitwise_and_(0xFFFF)
    return y


def not_in_rows(self: Any, x: Tensor) -> Any:
    y = x * 2
    y.t()[:2].unsqueeze(0).view(2, 3).add_(1)
    return y


@pytest.mark.parametrize("forward", [reinterpreted, not_in_rows])
@pytest.mark.parametrize("capture", ["auto", "export"])
def test_torch_follows_the_rest(forward: Callable[..., Any], capture: str) -> None:
    """Views without a rule use torch's functionalisation, which needs more operators."""
    model = module(forward)
    with pytest.raises(NotCoveredError, match="writes to"):
        record_fast(model, (X,), {})
    ir = extract_ir(model, (X,), strict=False, capture=capture)
    assert difference(ir, model, (X,)) == ""


def one_of_many(self: Any, x: Tensor) -> Any:
    y = (x * 2).expand(2, 3, 4)
    y[0].fill_(1.0)
    return y


def all_of_many(self: Any, x: Tensor) -> Any:
    x.expand(2, 3, 4).zero_()
    return x + 1


def unfolded(self: Any, x: Tensor) -> Any:
    y = x * 2
    y.unfold(1, 3, 3).fill_(0.0)
    return y


@pytest.mark.parametrize("forward", [one_of_many, all_of_many, unfolded])
@pytest.mark.parametrize("capture", ["auto", "export", "record"])
def test_nobody_follows_repeated_elements(forward: Callable[..., Any], capture: str) -> None:
    """Torch would return other numbers than the model, so such a write is refused, with an alternative."""
    refused = pytest.raises(ConversionError, match="expanded or unfolded tensor, which torch cannot")
    with quiet(), refused:
        extract_ir(module(forward), (X.clone(),), strict=False, capture=capture)


def test_two_names_of_one_memory() -> None:
    """For two tensors that share memory, or a view of both, writes to one are not tracked in the other."""
    a, b, joined = tensor("a", 2), tensor("b", 2), tensor("view", 4)
    relu = OpNode("relu", "aten.relu.default", [a], [tensor("relu", 2)], args=["self"])
    writes = Writes({a: "here", b: "here"}, {relu: a})
    with pytest.raises(UnfollowedWriteError, match="'b' and 'a' share memory"):
        without_writes([relu], [a, b], [relu.output], writes, set())
    view = OpNode("view", "aten.cat.default", [a, a], [joined], args=["tensors.0", "tensors.1"])
    writes = Writes({a: "here", joined: "here"}, {relu: a})
    with pytest.raises(UnfollowedWriteError, match="returns memory that several of its inputs share"):
        without_writes([view, relu], [a], [relu.output], writes, set())


def test_nothing_is_written() -> None:
    """A graph without writes stays as it is."""
    a = tensor("a", 2)
    relu = OpNode("relu", "aten.relu.default", [a], [tensor("relu", 2)], args=["self"])
    functional = without_writes([relu], [a], [relu.output], Writes(), set())
    assert (functional.nodes, functional.returned, functional.mutations) == ([relu], [relu.output], [])


# -- any program ------------------------------------------------------------------------------------------------------

_PROGRAMS = st.builds(random_lines, st.randoms(use_true_random=False), st.integers(1, 10))
# Refused, and never wrong: see above, and cases that torch's functionalisation does not support.
_REFUSED = ("clone it first", "torch cannot functionalise the captured graph")


def _check_program(lines: list[Any]) -> None:
    for capture in ("auto", "export"):
        model = Program(lines)
        try:
            with quiet():
                ir = extract_ir(model, inputs(), strict=False, capture=capture)
        except ConversionError as error:
            if not any(words in str(error) for words in _REFUSED):
                raise
        else:
            assert difference(ir, model, inputs()) == "", f"{capture}\n{ir}"


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(_PROGRAMS)
def test_programs_that_write(lines: list[Any]) -> None:
    """Views of inputs, buffers and fresh tensors are written to in any order: every bit is as when run by torch."""
    _check_program(lines)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000))
def test_many_programs_that_write(seed: int) -> None:
    source = random.Random(seed)
    _check_program(random_lines(source, source.randint(1, 12)))
