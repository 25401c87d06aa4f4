"""Lowering decomposes nodes without a handler into operators that have one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import catalogue
from tests.lowering import accepting, assert_joined, capture, graph_of, kinds
from torch_ir import IR, Limits, OpNode, Target, TensorMeta, extract_ir
from torch_ir.errors import LimitError
from torch_ir.ops import decompose
from torch_ir.ops.schema import arguments, find_operator
from torch_ir.ops.tensor_data import to_tensor
from torch_ir.ops.torch_types import to_torch
from torch_ir.targets.handlers import Rule


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x) + F.silu(x + 1)


def test_decompose_splits_what_has_no_handler() -> None:
    """All layers of a split node are there, joined to the names around it; handlers see ordinary nodes."""
    npu = accepting("aten.sigmoid", "aten.mul", "aten.add")
    ir = capture(Swish(), torch.ones(2, 3))
    assert npu.lower(ir).placeholders == ["silu", "silu_1"]
    lowered = npu.lower(ir, decompose=True)
    assert lowered.is_complete
    assert_joined(lowered)
    names = ["aten.sigmoid.default", "aten.mul.Tensor"]
    assert kinds(lowered) == [*names, "aten.add.Tensor", *names, "aten.add.Tensor"]
    assert [layer.name for layer in lowered][:2] == ["silu.sigmoid", "silu.mul"]


class Interpreter(Target):
    """A target that accepts all operators but some, and lowers each to a function that calls torch."""

    def __init__(self, denied: set[str]) -> None:
        super().__init__("interpreter")
        self.denied = denied

    def rules_for(self, op_type: str) -> Iterator[Rule]:
        if op_type.startswith("aten.") and op_type.split(".")[1] not in self.denied:
            yield Rule("any", _computed, ())


def _computed(node: OpNode) -> Callable[[dict[str, Any]], Any]:
    operator = find_operator(node.op_type)
    assert operator is not None
    names = [argument.name for argument in arguments(operator)]
    given = {name: node[name] if name in (*node.args, *node.attrs) else node.elements(name) for name in names}

    def value_of(argument: Any, values: dict[str, Any]) -> Any:
        if isinstance(argument, TensorMeta):
            return values[argument.key or argument.name]
        return [value_of(item, values) for item in argument] if isinstance(argument, list) else to_torch(argument)

    return lambda values: operator(**{name: value_of(argument, values) for name, argument in given.items()})


SPLIT = {"linear", "conv2d", "layer_norm", "silu", "gelu", "batch_norm", "softmax", "scaled_dot_product_attention",
         "adaptive_avg_pool2d", "flatten", "rms_norm", "hardswish", "dropout"}  # fmt: skip


@pytest.mark.parametrize("name", ["vit", "squeeze_excite", "transformer_encoder", "llama"])
def test_split_layers_compute_what_the_model_does(name: str) -> None:
    """Run layer by layer, with the operators that torch can split denied to the target."""
    torch.manual_seed(0)
    entry = catalogue.find(name)
    model, inputs = entry.build(), entry.inputs()
    lowered = Interpreter(SPLIT).lower(graph_of(name), decompose=True)
    assert lowered.is_complete, lowered.report()
    assert any("." in layer.name for layer in lowered)
    values: dict[str, Any] = {**model.state_dict(), **dict(model.named_buffers())}
    values |= {key: to_tensor(data) for key, data in lowered.ir.constants.items()}
    values |= {tensor.name: x for tensor, x in zip(lowered.ir.graph_inputs, inputs, strict=True)}
    with torch.no_grad():
        for layer in lowered:
            made = layer.value(values)
            if layer.outputs:
                several = made if isinstance(made, (list, tuple)) else [made]
                rows = [value.contiguous() for value in several]  # a split operator may lay its result out otherwise
                values.update(zip(layer.outputs, rows, strict=True))
        wanted = model(*inputs)
    torch.testing.assert_close(values[lowered.ir.graph_outputs[0].name], wanted, rtol=1e-4, atol=1e-5)


def test_decompose_is_all_or_nothing() -> None:
    lowered = accepting("aten.mul", "aten.add").lower(capture(Swish(), torch.ones(2, 3)), decompose=True)
    assert [str(row) for row in lowered.missing] == [
        "aten.silu.default  2x3 -> 2x3 x2  (no lowering; split by torch, it lacks aten.sigmoid.default)"
    ]


BATCH = torch.export.Dim("batch", min=2, max=8)


def test_decompose_splits_at_symbolic_sizes() -> None:
    ir = extract_ir(Swish().eval(), (torch.empty(4, 3, device="meta"),), dynamic_shapes=({0: BATCH},))
    lowered = accepting("aten.sigmoid", "aten.mul", "aten.add").lower(ir, decompose=True)
    assert lowered.is_complete
    assert_joined(lowered)
    assert [layer.name for layer in lowered][:2] == ["silu.sigmoid", "silu.mul"]


def test_decompose_says_why_not_where_sizes_vary() -> None:
    """The rule of bicubic resampling computes weights from the size; at one size they are constants."""

    class Resized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(x, size=(5, 5), mode="bicubic")

    ir = extract_ir(Resized().eval(), (torch.empty(1, 1, 6, 4, device="meta"),), dynamic_shapes=({2: BATCH},))
    (missing,) = Interpreter({"upsample_bicubic2d"}).lower(ir, decompose=True).missing
    assert "not split: its sizes vary, and its decomposition has constants that depend on them" in str(missing)
    assert Interpreter({"upsample_bicubic2d"}).lower(ir.specialize(batch=3), decompose=True).is_complete


def test_nodes_of_a_file_are_split_in_a_child_process_and_within_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's rules may crash, and each part of a node may have parts; a graph of a program has no limit."""
    npu = accepting("aten.sigmoid", "aten.mul", "aten.add")
    ir = capture(Swish(), torch.ones(2, 3))
    back = IR.from_json(ir.to_json())
    expected = [layer.to_dict() for layer in npu.lower(ir, decompose=True)]
    assert [layer.to_dict() for layer in npu.lower(back, decompose=True)] == expected  # it starts the child
    monkeypatch.setattr(decompose, "decomposed", None)  # in this process
    assert [layer.to_dict() for layer in npu.lower(back, decompose=True)] == expected
    back.limits = Limits(derived_tensors=-1000)
    with pytest.raises(LimitError, match="derived_tensors"):
        npu.lower(back, decompose=True)
