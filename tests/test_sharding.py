"""Placements: every tensor of a sharded graph has a placement on each mesh axis."""

import pytest

from torch_ir import IR, GraphError, OpNode, TensorMeta
from torch_ir.ir import Param


def column_parallel() -> IR:
    """One rank of a linear layer whose outputs are split over two devices, with the results gathered by a sum."""
    x = TensorMeta("x", (4, 8), "float32", placement=["replicate"])
    weight = TensorMeta("p_weight", (3, 8), "float32", param=Param(("weight",)), placement=["shard(0)"])
    y = TensorMeta("linear", (4, 3), "float32", placement=["shard(1)"])
    linear = OpNode("linear", "aten.linear.default", [x, weight], [y], {"bias": None}, args=["input", "weight"])
    return IR([linear], [x], [y], params=[weight], mesh={"tp": 2}).check()


def test_placements_show_in_the_text_and_survive_the_file() -> None:
    ir = column_parallel()
    assert str(ir) == (
        "graph(x: float32[4, 8] on replicate) {\n"
        "  mesh tp = 2\n"
        '  param p_weight: float32[3, 8] on shard(0) = "weight"\n'
        "  linear: float32[4, 3] on shard(1) = aten.linear.default(input=x, weight=p_weight, bias=None)\n"
        "  return linear,\n"
        "}\n"
    )
    loaded = IR.from_json(ir.to_json())
    assert str(loaded) == str(ir) == str(ir.clone())
    assert loaded.params[0].placement == ("shard(0)",)
    assert loaded.to_json() == ir.to_json()


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (("shard(2)",), r"TensorMeta\('linear'.*has an invalid placement 'shard\(2\)'"),
        (("split",), "has an invalid placement 'split'"),
        (
            ("shard(-1)",),
            r"has an invalid placement 'shard\(-1\)'",
        ),  # allowed in plans, not in files
        (("shard(-0)",), r"has an invalid placement 'shard\(-0\)'"),
        (("shard(0,2)",), r"has an invalid placement 'shard\(0,2\)'"),
        (("shard(0, 0)",), r"has an invalid placement 'shard\(0, 0\)'"),
        (("replicate", "replicate"), "2 placements on a mesh of 1 axes"),
    ],
)
def test_a_placement_must_fit_tensor_and_mesh(placement: tuple[str, ...], message: str) -> None:
    ir = column_parallel()
    ir.nodes[0].output.placement = placement
    with pytest.raises(GraphError, match=message):
        ir.check()


def test_a_mesh_has_named_axes_of_whole_sizes() -> None:
    ir = column_parallel()
    ir.mesh = {"tp": 0}
    with pytest.raises(GraphError, match="the mesh cannot have an axis 'tp' of size 0"):
        ir.check()
