"""Equal graphs have equal bytes, whatever the order of their attributes."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attr_orders import schema_orders
from tests.graphs import tensor
from torch_ir import IR, OpNode, optimize
from torch_ir.analysis import diff
from torch_ir.formats import save_protobuf
from torch_ir.ir.graph.attr_order import ordered

CONV = {"bias": None, "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}


def convolutions(*orders: list[str]) -> IR:
    """The same convolution once for each order of its attributes."""
    x, w = tensor("x", 1, 2, 4, 4), tensor("w", 2, 2, 1, 1)
    nodes = [
        OpNode(f"conv_{number}", "aten.conv2d.default", [x, w], [tensor(f"conv_{number}", 1, 2, 4, 4)],
               {name: CONV[name] for name in order}, args=["input", "weight"])
        for number, order in enumerate(orders)
    ]  # fmt: skip
    return IR(nodes, [x, w], [node.output for node in nodes]).check()


def _gzip(ir: IR, folder: Path) -> bytes:
    ir.save(folder / "graph.json.gz")
    return (folder / "graph.json.gz").read_bytes()


def _protobuf(ir: IR, folder: Path) -> bytes:
    save_protobuf(ir, folder / "graph.pb")
    return (folder / "graph.pb").read_bytes()


WRITTEN: dict[str, Callable[[IR, Path], object]] = {
    "json": lambda ir, folder: ir.to_json(),
    "gzip": _gzip,
    "dict": lambda ir, folder: repr(ir.to_dict()),
    "protobuf": _protobuf,
    "text": lambda ir, folder: str(ir),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_equal_graphs_are_equal_bytes(kind: str, tmp_path: Path) -> None:
    names, other = list(CONV), list(CONV)
    random.Random(0).shuffle(other)
    assert names != other
    one, two = convolutions(names), convolutions(other)
    assert diff(one, two).is_equal
    assert WRITTEN[kind](one, tmp_path) == WRITTEN[kind](two, tmp_path)
    assert list(IR.from_json(two.to_json()).nodes[0].attrs) == names


def test_common_subexpressions_do_not_mind_the_order() -> None:
    ir = convolutions(list(CONV), list(reversed(CONV)))
    both = tuple(ir.graph_outputs)
    add = OpNode("add", "aten.add.Tensor", both, [both[0].copy("add")], {"alpha": 1}, args=["self", "other"])
    ir.returns.inputs = ()
    better, _ = optimize(IR([*ir.nodes, add], ir.graph_inputs, [add.output]), passes=["common-subexpressions"])
    assert [node.name for node in better.nodes] == ["conv_0", "add"]


def test_the_order_is_that_of_every_schema() -> None:
    """Stored files round-trip; `python -m tests.attr_orders` regenerates the table."""
    draw = random.Random(0)
    for op_type, names in schema_orders().items():
        mixed = list(names)
        draw.shuffle(mixed)
        assert list(ordered(op_type, dict.fromkeys(mixed))) == list(names), op_type


def test_elements_of_lists_are_in_their_own_order() -> None:
    attrs = {"indices.10": None, "indices.2": None, "indices.0": None}
    assert list(ordered("aten.index.Tensor", attrs)) == ["indices.0", "indices.2", "indices.10"]


@pytest.mark.parametrize("op_type", ["mine.op.default", "higher_order.cond", "fused.attention"])
def test_attributes_of_other_operators_stay_as_they_are(op_type: str) -> None:
    attrs = {"stride": 1, "bias": None}
    assert ordered(op_type, attrs) is attrs


def test_names_that_no_schema_has_are_left_alone() -> None:
    """Such as files of the documented format have for lists of tensors."""
    attrs = {"dim": 1, "_tensor_list_sizes": [2]}
    assert ordered("aten.cat.default", attrs) is attrs
