"""Direct calls: the executor calls torch's Python functions, which dispatch the operator that the graph names."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.rewriting import small
from torch_ir import ExecutionError, IRExecutor
from torch_ir.ops.direct_calls import DIRECT, direct_call
from torch_ir.ops.schema import arguments, find_operator
from torch_ir.ops.torch_internals import plain_call

X, Y = torch.randn(2, 3, 8, generator=torch.manual_seed(0)), torch.rand(2, 3, 8) + 0.5
IMAGE, HEADS = torch.randn(1, 3, 8, 8), torch.randn(1, 2, 4, 8)
W, V = torch.randn(5, 8), torch.randn(3)
# positional arguments and keywords in schema order, with and without defaults
CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "add.Tensor": [((X, Y), {}), ((X, Y), {"alpha": 2}), ((X, torch.tensor(2.0)), {})],
    "sub.Tensor": [((X, Y), {}), ((X, Y), {"alpha": 0.5})],
    "addmm.default": [((torch.randn(4), torch.randn(3, 5), torch.randn(5, 4)), {"beta": 0.5})],
    "batch_norm.default": [((IMAGE, V, V, V, V.abs(), False, 0.1, 1e-5, True), {})],
    "bmm.default": [((X, Y.transpose(1, 2)), {})],
    "cat.default": [(((X, Y), -1), {}), (((X,), 0), {})],
    "conv1d.default": [((X, torch.randn(4, 3, 3), None, (1,), (1,), (1,), 1), {})],
    "conv2d.default": [((IMAGE, torch.randn(4, 3, 3, 3), torch.randn(4), (2, 2), (1, 1), (1, 1), 1), {})],
    "embedding.default": [((W, torch.tensor([[1, 2]]), -1, False, False), {})],
    "flatten.using_ints": [((IMAGE, 1, -1), {})],
    "layer_norm.default": [((X, (8,), None, None, 1e-5, True), {}), ((X, (8,), W[0], W[1], 1e-5, True), {})],
    "matmul.default": [((X, W.t()), {})],
    "max_pool2d.default": [((IMAGE, (2, 2), (2, 2), (0, 0), (1, 1), False), {})],
    "mean.dim": [((X, (-1,), True), {}), ((X, None, False), {"dtype": torch.float64})],
    "permute.default": [((X, (2, 0, 1)), {})],
    "pow.Tensor_Scalar": [((X, 2), {}), ((Y, 0.5), {})],
    "reshape.default": [((X, (6, -1)), {})],
    "select.int": [((X, 1, -1), {})],
    "softmax.int": [((X, -1, None), {}), ((X, 1, torch.float64), {})],
    "squeeze.dim": [((X[:, :1], 1), {})],
    "transpose.int": [((X, 1, 2), {})],
    "unsqueeze.default": [((X, -1), {})],
    "where.self": [((X > 0, X, Y), {})],
    "_assert_tensor_metadata.default": [((X, None, None, torch.float32), {}), ((X,), {"layout": torch.strided})],
    "adaptive_avg_pool2d.default": [((IMAGE, (2, 2)), {})],
    "gelu.default": [((X,), {}), ((X,), {"approximate": "tanh"})],
    "linear.default": [((X, W, None), {}), ((X, W, torch.randn(5)), {})],
    "scaled_dot_product_attention.default": [
        ((HEADS, HEADS, HEADS, None, 0.0, True), {}),
        ((HEADS, HEADS, HEADS, torch.ones(4, 4).tril().bool(), 0.0, False), {"scale": 0.5}),
    ],
    "contiguous.default": [((IMAGE,), {}), ((IMAGE,), {"memory_format": torch.channels_last})],
    "expand.default": [((X[:, :1], (2, 3, -1)), {}), ((X, (4, 2, 3, 8)), {"implicit": True})],
    "to.dtype": [((X, torch.float64, False, False), {}), ((X, torch.float32, False, True), {})],
    "view.default": [((X, (6, 8)), {})],
}
BINARY = ("div", "eq", "ge", "gt", "le", "lt", "mul", "ne")
CALLS |= {f"{name}.Tensor": [((X, Y), {}), ((X, torch.tensor(1.5)), {})] for name in BINARY}
NUMBERS = ("add.Tensor", "div.Tensor", "mul.Tensor", "sub.Tensor")
for name in NUMBERS:
    CALLS[name] += [((X, 1e-6), {}), ((X.half(), 3), {}), ((torch.arange(4), 2), {}), ((torch.arange(4), 0.5), {})]
UNARY = ("abs", "cos", "exp", "neg", "relu", "rsqrt", "sigmoid", "silu", "sin", "sqrt", "tanh")
CALLS |= {f"{name}.default": [((Y,), {})] for name in UNARY}


class _Dispatched(TorchDispatchMode):
    """Records the operators that are dispatched, with their arguments that are not tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [arg for arg in args if not isinstance(arg, torch.Tensor)]
        self.calls.append(f"{func} {plain} {kwargs}")
        return func(*args, **(kwargs or {}))


def test_every_direct_call_is_tested() -> None:
    assert {f"aten.{name}" for name in CALLS} == set(DIRECT)


@pytest.mark.parametrize("name", CALLS)
def test_a_direct_call_dispatches_the_operator(name: str) -> None:
    """The same operators with the same arguments, and the same bits."""
    operator = find_operator(f"aten.{name}")
    assert operator is not None
    places = [argument for argument in arguments(operator) if not argument.keyword_only]
    by_name = {argument.name for argument in arguments(operator) if argument.keyword_only}
    for args, kwargs in CALLS[name]:
        assert by_name.issuperset(kwargs)
        assert all(place.has_default and place.default is None for place in places[len(args) :])
        found = []
        for call in (DIRECT[f"aten.{name}"], operator):
            with torch.no_grad(), _Dispatched() as seen:
                found.append((call(*args, **kwargs), seen.calls))
        (ours, our_calls), (theirs, their_calls) = found
        assert our_calls == their_calls
        if theirs is not None:
            assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_a_number_for_a_tensor_is_passed_to_the_operator() -> None:
    """`torch.mul(x, 2)` is the same operator; other functions may choose another overload."""
    ir = small(
        "x: float32[2, 3]",
        mul="aten.mul.Tensor(x, 2.0)",
        relu="aten.relu.default(mul)",
        mul_1="aten.mul.Tensor(relu, True)",
    )
    operators = [find_operator(node.op_type) for node in ir.nodes]
    calls = [direct_call(node, found) for node, found in zip(ir.nodes, operators, strict=True)]  # type: ignore[arg-type]
    assert calls[:2] == [torch.mul, torch.relu]
    assert calls[2:] == [plain_call(found) for found in operators[2:]]  # type: ignore[arg-type]
    x = torch.randn(2, 3)
    assert torch.equal(IRExecutor(ir, {})(x), (2 * x).relu())


def test_arguments_that_are_not_defaults_are_passed() -> None:
    """Of `to`, the memory format has a position in the schema, and only a name in Python."""
    ir = small(
        "x: float32[1, 2, 3, 4]",
        to="aten.to.dtype(x, Dtype('float64'))",
        to_1="aten.to.dtype(to, Dtype('float32'), False, True, MemoryFormat('channels_last'))",
        add="aten.add.Tensor(to_1, to_1, alpha=2)",
        sum_1="aten.sum.dim_IntList(add, [1], True)",
    )
    x = torch.randn(1, 2, 3, 4)
    (found,) = IRExecutor(ir, {}).execute((x,))
    assert torch.equal(found, (3 * x).sum(1, keepdim=True))
    copies = []
    IRExecutor(ir, {}, watch=lambda tensor, value, sizes: copies.append(value.stride()))(x)
    assert copies[1] == x.to(memory_format=torch.channels_last).stride()


def test_assertions_still_fail() -> None:
    ir = small("x: float32[2, 3]", relu="aten.relu.default(x)")
    executor = IRExecutor(ir, {})
    with pytest.raises(ExecutionError, match="has shape"):
        executor(torch.randn(3, 3))
    with pytest.raises(RuntimeError, match="dtype"):
        DIRECT["aten._assert_tensor_metadata.default"](X, None, None, torch.int64)
