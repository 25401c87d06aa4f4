"""Verification detects every difference between a graph and its model."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.proof import captured, fails, module
from torch_ir import verify_ir_with_state_dict
from torch_ir.ir import Expr, Param

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
LAYER = module(lambda self, x: self.layer(x).relu(), layer=nn.Linear(4, 4))


def test_tiny_outputs_that_are_all_wrong() -> None:
    """The tolerance shrinks with the scale of the output: values of 1e-8 that are off by half do not pass."""
    model = module(lambda self, x: x * 1e-8)
    ir = captured(model, X)
    ir.node("mul").attrs["other"] = 1.5e-8
    assert "12 of 12 elements are too far off" in fails(ir, model, X)
    ir.node("mul").attrs["other"] = 0.0
    assert "too far off" in fails(ir, model, X)


def test_integers_off_by_one() -> None:
    """Integers must be equal, however large."""
    model = module(lambda self, x: x + 2**53)
    x = torch.arange(4)
    ir = captured(model, x)
    ir.node("add").attrs["other"] = 2**53 + 1
    assert "4 of 4 elements differ, and torch.int64 must be equal" in fails(ir, model, x)


def test_booleans_must_be_equal() -> None:
    model = module(lambda self, x: x > 0)
    ir = captured(model, X)
    ir.node("gt").attrs["other"] = 0.5
    assert "must be equal" in fails(ir, model, torch.tensor([[0.2, 1.0, -1.0, 0.7]] * 3))


def test_conjugated_complex() -> None:
    """Complex numbers are compared in both parts."""
    model = module(lambda self, x: torch.complex(x, x * 2).resolve_conj() * 1j)
    ir = captured(model, X)
    ir.node("mul_1").attrs["other"] = -1j
    assert "too far off" in fails(ir, model, X)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_special_values_in_another_place(special: float) -> None:
    """NaN and infinities must be where the model has them, and of the same sign."""
    model = module(lambda self, x: torch.where(x > 0, x, special))
    ir = captured(model, X)
    ir.node("gt").attrs["other"] = 0.5
    x = torch.tensor([[0.2, 1.0, -1.0, 0.7]] * 3)
    assert fails(ir, model, x) == "output: NaN or infinity in different places"
    ir = captured(model, X)
    ir.node("where").attrs["other"] = math.inf if special != math.inf else -math.inf
    assert "NaN or infinity in different places" in fails(ir, model, x)


def test_a_swapped_complex_infinity() -> None:
    """A complex infinity is compared part by part."""
    model = module(lambda self, x: torch.complex(x, x * math.inf))
    ir = captured(model, X)
    ir.node("mul").attrs["other"] = -math.inf
    assert fails(ir, model, X) == "output: NaN or infinity in different places"


def test_wrong_dtype() -> None:
    """Equal numbers of another dtype are not equal."""
    model = module(lambda self, x: x.to(torch.float64))
    ir = captured(model, X)
    ir.node("to").attrs["dtype"] = type(ir.node("to")["dtype"])("float32")
    ir.node("to").output.dtype = "float32"
    assert fails(ir, model, X) == "output: dtype torch.float32 instead of torch.float64"


def test_wrong_shape() -> None:
    """Equal numbers in another shape are not equal."""
    model = module(lambda self, x: x.sum(1, keepdim=True))
    ir = captured(model, X)
    ir.node("sum_1").attrs["keepdim"] = False
    ir.node("sum_1").output.shape = (3,)
    assert fails(ir, model, X) == "output: shape [3] instead of [3, 1]"


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), "float32"), ((12,), "float32"), ((3, 4), "float16")])
@pytest.mark.parametrize("name", ["linear", "relu"])
def test_wrong_declarations(name: str, shape: tuple[int, ...], dtype: str) -> None:
    """A tensor that differs from its declaration is detected, also in the middle of the graph."""
    ir = captured(LAYER, X)
    ir.node(name).output.shape, ir.node(name).output.dtype = shape, dtype
    expected = f"{name!r} of {ir.node(name)!r} is declared {dtype}{list(shape)}, but is float32[3, 4]"
    assert fails(ir, LAYER, X) == expected


def test_a_missing_output() -> None:
    """A graph that returns less, or more, than the model is refused."""
    model = module(lambda self, x: (x + 1, x * 2))
    first, both = captured(module(lambda self, x: x + 1), X), captured(model, X)
    assert fails(first, model, X) == "the model returns 2 values, the graph 1"
    assert fails(both, module(lambda self, x: x + 1), X) == "the model returns 1 values, the graph 2"


def test_other_dict_keys() -> None:
    """Outputs under other names are other outputs."""
    ir = captured(module(lambda self, x: {"a": x + 1, "b": x}), X)
    other = module(lambda self, x: {"a": x + 1, "c": x})
    assert fails(ir, other, X) == "the model returns output['a'], output['c'], the graph output['a'], output['b']"
    nested = module(lambda self, x: {"a": x + 1, "b": [x]})
    assert "output['b'][0]" in fails(ir, nested, X)


def test_other_numbers_and_strings() -> None:
    """Non-tensor outputs must be equal, and of the same type."""
    ir = captured(module(lambda self, x: [x, 3, "a", None, True]), X)
    for others in (
        (4, "a", None, True),
        (3, "b", None, True),
        (3, "a", 0, True),
        (3, "a", None, 1),
        (3.0, "a", None, True),
    ):
        assert "instead of" in fails(ir, module(lambda self, x, others=others: [x, *others]), X)


def counting(self: Any, x: Tensor) -> Tensor:
    self.count.add_(1)
    return x * 2


def test_a_forgotten_buffer_update() -> None:
    """A change that only the model makes is detected, although the outputs are right."""
    model = module(counting, buffers={"count": torch.zeros(())})
    ir = captured(model, X)
    ir.mutations = []
    assert fails(ir, model, X) == "count afterwards: the model changes it, the graph does not"


def test_a_wrong_buffer_update() -> None:
    """The new value of a buffer is compared like an output."""
    model = module(counting, buffers={"count": torch.zeros(())})
    ir = captured(model, X)
    ir.node("add").attrs["other"] = 2
    assert fails(ir, model, X) == "count afterwards: 1 of 1 elements are too far off"


def test_a_buffer_update_that_the_model_does_not_do() -> None:
    """A change that only the graph makes is detected as well."""
    ir = captured(module(counting, buffers={"count": torch.zeros(())}), X)
    model = module(lambda self, x: x * 2, buffers={"count": torch.zeros(())})
    assert fails(ir, model, X) == "count afterwards: 1 of 1 elements are too far off"


def test_a_forgotten_input_mutation() -> None:
    """Inputs that the model writes to are part of its results."""

    def forward(self: Any, x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return x * 2

    model = module(forward)
    ir = captured(model, X, X)
    ir.mutations = []
    assert fails(ir, model, X, X.clone()) == "input 1 afterwards: the model changes it, the graph does not"


def test_a_model_without_outputs() -> None:
    """Where neither side returns or changes anything, nothing is proved."""
    model = module(lambda self, x: None)
    report = verify_ir_with_state_dict(captured(model, X), {}, model, (X,))[1]
    assert (report.verdict, report.is_valid, report.trials) == ("FAILED, NOTHING COMPARED", False, 0)
    assert report.error_message == "nothing was compared: neither side returned a value or changed a tensor"


def test_swapped_inputs() -> None:
    """The order of arguments counts."""
    model = module(lambda self, x, y: x - y)
    ir = captured(model, X, X)
    node = ir.node("sub")
    node.inputs = node.inputs[::-1]
    assert "too far off" in fails(ir, model, X, X * 3)


def test_a_dropped_node() -> None:
    """A graph without one of its nodes is another graph."""
    ir = captured(LAYER, X)
    relu = ir.node("relu")
    relu.output.replace_all_uses_with(relu["self"])
    ir.nodes.remove(relu)
    relu.inputs = ()
    assert "too far off" in fails(ir, LAYER, X)


def test_a_wrong_constant() -> None:
    """Constants of the graph are used, not those of the model."""
    model = module(lambda self, x: x * self.scale, scale=torch.full((4,), 2.0))
    ir = captured(model, X)
    scale = ir.params[0]
    assert scale.param is not None
    assert scale.param.data is not None
    data = type(scale.param.data)((4,), "float32", torch.full((4,), 3.0).numpy().tobytes())
    scale.param = Param(scale.param.keys, scale.param.kind, data)
    assert "too far off" in fails(ir, model, X)


def test_a_wrong_size() -> None:
    """A symbolic size that is computed wrongly is caught."""
    model = module(lambda self, x: (x * x.shape[0], x.shape[0] + 1))
    ir = captured(model, X, dynamic_shapes=({0: torch.export.Dim("batch")},))
    ir.node("mul").attrs["other"] = Expr("batch + 1")
    assert "too far off" in fails(ir, model, X)
