"""Optimising a file runs no kernel that trusts its values, and stays within the budget."""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tests.graphs import tensor
from tests.hostile_values import operators, sweep
from torch_ir import execute_ir, from_protobuf, optimize, to_protobuf, validate_ir
from torch_ir.analysis import diff
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.values.constants import Constants
from torch_ir.errors import GraphError, SerializationError, ShapeError
from torch_ir.ir import IR, Dtype, Layout, OpNode, Param, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.llm.forms.fixed_parts import new_budget, values_at
from torch_ir.ops.tensor_data import from_tensor

LOWEST = torch.iinfo(torch.int64).min


def constant(name: str, value: torch.Tensor) -> TensorMeta:
    tensor = TensorMeta(name, tuple(value.shape), str(value.dtype).removeprefix("torch."))
    tensor.param = Param((name,), "constant", from_tensor(value))
    return tensor


def call(op_type: str, made: tuple[int, ...], dtype: str, attrs: dict[str, object], **values: torch.Tensor) -> IR:
    """A graph of one call on constants."""
    params = [constant(name, value) for name, value in values.items()]
    output = TensorMeta("made", made, dtype)
    return IR([OpNode("made", op_type, params, [output], attrs, args=values)], [], [output], params=params)


HOSTILE = {
    "_convert_indices_from_coo_to_csr": call(
        "aten._convert_indices_from_coo_to_csr.default", (4,), "int64", {"size": 3, "out_int32": False},
        self=torch.tensor([LOWEST, 2**40]),
    ),
    "_convert_indices_from_csr_to_coo": call(
        "aten._convert_indices_from_csr_to_coo.default", (2, 2), "int64", {"out_int32": False, "transpose": False},
        crow_indices=torch.tensor([0, 2**40, 2]), col_indices=torch.tensor([0, 1]),
    ),
    "max_pool2d_with_indices_backward": call(
        "aten.max_pool2d_with_indices_backward.default", (1, 2, 2), "float32",
        {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False},
        grad_output=torch.ones(1, 1, 1), self=torch.ones(1, 2, 2), indices=torch.tensor([[[2**40]]]),
    ),
    "segment_reduce": call(
        "aten.segment_reduce.default", (1,), "float32", {"reduce": "sum", "axis": 0, "unsafe": True, "initial": None},
        data=torch.ones(2), lengths=torch.tensor([2**40]),
    ),
    "div by -1": call(
        "aten.div.Tensor_mode", (1,), "int64", {"rounding_mode": "trunc"},
        self=torch.tensor([LOWEST]), other=torch.tensor([-1]),
    ),
    "div by 0": call(
        "aten.div.Scalar_mode", (1,), "int64", {"other": 0, "rounding_mode": "floor"}, self=torch.tensor([1])
    ),
    "remainder by -1": call(
        "aten.remainder.Tensor", (1,), "int64", {}, self=torch.tensor([LOWEST]), other=torch.tensor([-1])
    ),
    "laguerre": call(
        "aten.special_laguerre_polynomial_l.n_scalar", (1,), "float32", {"n": 2**31}, x=torch.tensor([0.5])
    ),
    "lu_unpack": call(
        "aten.lu_unpack.default", (2, 2), "float32", {"unpack_data": True, "unpack_pivots": True},
        LU_data=torch.ones(2, 2), LU_pivots=torch.tensor([2**30, -5], dtype=torch.int32),
    ),
    "conv2d": call(
        "aten.conv2d.default", (1, 1, 500, 500), "float32",
        {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "bias": None},
        input=torch.ones(1, 1, 504, 504), weight=torch.ones(1, 1, 5, 5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_kernel_that_trusts_its_operands_is_not_run(name: str) -> None:
    """The call stays in the graph, to be computed when the graph runs."""
    ir = HOSTILE[name]
    assert Constants(ir).value(ir.nodes[0].outputs[0]) is None
    assert [node.op_type for node in optimize(ir)[0].nodes] == [ir.nodes[0].op_type]


@pytest.mark.parametrize(
    ("op_type", "attrs", "dtype", "is_here"),
    [
        ("aten.cos.default", {}, "float32", True),
        ("aten.erfinv.default", {}, "float32", False),
        ("aten.floor_divide.Scalar", {"other": 3}, "int64", True),
        ("aten.floor_divide.Scalar", {"other": 0}, "int64", False),
        ("aten.remainder.Scalar", {"other": -1}, "int64", False),
        ("aten.floor_divide.default", {}, "int64", False),
        ("aten.div.Tensor", {}, "float32", True),
    ],
)
def test_masks_are_computed_here_or_in_a_child(
    op_type: str, attrs: dict[str, object], dtype: str, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To recognise the mask of an attention, its values are computed: in this process only if no kernel trusts them."""
    x, y = TensorMeta("x", (3,), dtype), TensorMeta("y", (3,), dtype)
    names = ["self"] if attrs or op_type.startswith(("aten.cos", "aten.erf")) else ["self", "other"]
    constants = [constant(name, torch.full((3,), 2).to(getattr(torch, dtype))) for name in names]
    ir = IR([OpNode("y", op_type, constants, [y], attrs, args=names)], [x], [y], params=constants)
    asked = []

    def execute(part: IR, inputs: list[object], weights: object, *, isolated: bool) -> tuple[torch.Tensor]:
        asked.append(isolated)
        return (torch.zeros(3),)

    monkeypatch.setattr("torch_ir.llm.forms.fixed_parts.execute_ir", execute)
    values_at(ir, [y], {}, {}, new_budget())
    assert asked == [not is_here]


def test_values_that_do_not_trap_are_divided() -> None:
    ir = call(
        "aten.div.Tensor_mode", (2,), "int64", {"rounding_mode": "trunc"},
        self=torch.tensor([LOWEST, 7]), other=torch.tensor([2, -2]),
    )  # fmt: skip
    known = Constants(ir).value(ir.nodes[0].output)
    assert known is not None
    assert known.tolist() == [LOWEST // 2, -3]


def test_the_budget_bounds_all_values_together() -> None:
    """A thousand calls with results of 512 KiB: those beyond the budget are not folded."""
    nodes = []
    for index in range(1000):
        made = TensorMeta(f"made_{index}", (1 << 16,), "int64")
        attrs = {"start": index, "end": index + (1 << 16), "dtype": None, "layout": None, "device": None}
        nodes.append(OpNode(f"made_{index}", "aten.arange.start", [], [made], attrs))
    ir = IR(nodes, [], [nodes[-1].output])
    known = Constants(ir, Budget(10 << 19))
    assert sum(known.value(node.output) is not None for node in nodes) == 10


def test_a_shape_rule_that_raises_leaves_the_thread_as_it_was() -> None:
    """With a sparse layout, the rule of `linspace` reads its operand; after that, fake tensors were taken for real."""
    start = TensorMeta("start", (), "float64")
    shapes = Shapes(IR([], [start], [start]))
    for layout in ("sparse_csr", "sparse_coo", "jagged"):
        attrs = {"end": -1, "steps": 2, "dtype": None, "layout": Layout(layout), "device": None, "pin_memory": None}
        with contextlib.suppress(ShapeError):
            assert shapes.results("aten.linspace.Tensor_Scalar", {"start": start}, attrs) is None
        with FakeTensorMode():
            assert isinstance(torch.ones(3), FakeTensor)


@pytest.mark.usefixtures("_forked_python")
def test_folding_survives_hostile_values() -> None:
    """Four calls of each operator that may run on values from a file; the child would die."""
    outcome = sweep(4)
    assert outcome.made == 4 * len(operators())
    assert outcome.computed > 400
    assert outcome.crashed == []


@pytest.mark.slow
def test_folding_survives_many_hostile_values() -> None:
    assert sweep(200).crashed == []


def test_the_work_for_masks_and_tables_is_bounded() -> None:
    """However small each one is; looking at a graph and starting a process count, too."""
    x = tensor("x", 2)
    for kind, most in (("aten.relu.default", 200), ("aten.erfinv.default", 1 << 28)):
        made = OpNode("y", kind, [x], [tensor("y", 2)], args=["self"])
        ir = IR([made], [x], [made.output])
        assert values_at(ir, [made.output], {}, {x: torch.zeros(2)}, Budget(most + 300))[0].tolist() == [0, 0]
        with pytest.raises(GraphError, match="'y', which depends on positions, takes too much memory or time"):
            values_at(ir, [made.output], {}, {x: torch.zeros(2)}, Budget(most))


LARGE = (2**80, -(2**63) - 1, 2**64, 10**99)


def _filled_with(number: int) -> IR:
    full = OpNode(
        "full", "aten.full.default", [], [tensor("full", 2, dtype="int64")], {"size": [2], "fill_value": number}
    )
    x = tensor("x", 2, dtype="int64")
    add = OpNode("add", "aten.add.Tensor", [x, full.output], [tensor("add", 2, dtype="int64")], args=["self", "other"])
    return IR([full, add], [x], [add.output])


@pytest.mark.parametrize("number", LARGE)
def test_an_integer_beyond_64_bits(number: int) -> None:
    """No operator takes one; analyses of a graph that was not checked go on without its value."""
    ir = _filled_with(number)
    for read in (IR.from_json(ir.to_json()), IR.parse(ir.to_text()), from_protobuf(to_protobuf(ir))):
        with pytest.raises(SerializationError, match="takes number as 'fill_value'") as caught:
            validate_ir(read)
        assert (caught.value.rule, caught.value.path) == ("R11", "$.nodes[0].attrs.fill_value")
    assert len(optimize(ir, "full")[0].nodes) == 2
    assert not diff(ir, _filled_with(1)).is_equal


@pytest.mark.parametrize(("number", "dtype"), [(2**64 - 1, "uint64"), (-(2**63), "int64")])
def test_the_largest_integers_are_accepted(number: int, dtype: str) -> None:
    full = OpNode("full", "aten.full.default", [], [tensor("full", 1, dtype=dtype)],
                  {"size": [1], "fill_value": number, "dtype": Dtype(dtype)})  # fmt: skip
    ir = IR([full], [], [full.output])
    assert validate_ir(ir)
    assert execute_ir(ir, (), {})[0].tolist() == [number]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize("name", ["dim", "other"])
def test_an_integer_argument_beyond_64_bits(name: str, number: int) -> None:
    ir = {
        "dim": call("aten.softmax.int", (2,), "float32", {"dim": number, "dtype": None}, self=torch.ones(2)),
        "other": call("aten.mul.Scalar", (2,), "float32", {"other": number}, self=torch.ones(2)),
    }[name]
    with pytest.raises(SerializationError, match=f"as {name!r}, not {number!r:.60}"):
        validate_ir(ir)
