"""Reshapes: one canonical form, one call for a chain, none if the shape is unchanged."""

import pytest
import torch
from torch.export import Dim

from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, extract_ir


def _ops(ir: IR) -> list[str]:
    return [node.op_type.split(".")[1] for node in ir.nodes]


@pytest.mark.parametrize(
    "call",
    [
        "aten.view.default(x, [1, -1])",
        "aten.reshape.default(x, [-1, 6])",
        "aten._unsafe_view.default(x, [1, 6])",
        "aten.unsqueeze.default(x, 0)",
        "aten.unflatten.int(x, 0, [1, -1])",
    ],
)
def test_every_spelling_becomes_a_reshape(call: str) -> None:
    """Sizes are written out, without -1."""
    after = optimized(small("x: float32[6]", last=call), ["reshapes"], exact=True)
    name = after.nodes[0].name
    assert text(after) == lines(f"""
        graph(x: float32[6]) {{
          {name}: float32[1, 6] = aten.reshape.default(self=x, shape=[1, 6])
          return {name}
        }}
    """)


@pytest.mark.parametrize(
    "call",
    [
        "aten.squeeze.default(x)",
        "aten.squeeze.dim(x, 1)",
        "aten.squeeze.dims(x, [1])",
        "aten.flatten.using_ints(x, 0, 1)",
        "aten.view_as.default(x, like)",
        "aten.reshape_as.default(x, like)",
    ],
)
def test_sizes_of_one_and_shapes_of_others(call: str) -> None:
    """squeeze, flatten and view_as also define the shape."""
    ir = small("x: float32[4, 1, 5], like: float32[4, 5]", last=call)
    (node,) = optimized(ir, ["reshapes"], exact=True).nodes
    assert (node.op_type, node.attrs) == ("aten.reshape.default", {"shape": [4, 5]})


def test_a_chain_is_one_reshape() -> None:
    """Intermediate shapes do not matter."""
    ir = small(
        "x: float32[2, 3, 4]",
        view="aten.view.default(x, [6, 4])",
        unsqueeze="aten.unsqueeze.default(view, 0)",
        flatten="aten.flatten.using_ints(unsqueeze)",
        unflatten="aten.unflatten.int(flatten, 0, [4, 6])",
        exp="aten.exp.default(unflatten)",
    )
    after = optimized(ir, ["reshapes"], exact=True)
    assert _ops(after) == ["reshape", "exp"]
    assert after.nodes[0].attrs == {"shape": [4, 6]}
    assert set(after.nodes[0].origins) == {"view", "unsqueeze", "flatten", "unflatten"}


def test_a_shape_that_comes_back() -> None:
    """squeeze(unsqueeze(x)) is x, and a view to the shape that is there is nothing."""
    ir = small(
        "x: float32[2, 3]",
        unsqueeze="aten.unsqueeze.default(x, 1)",
        squeeze="aten.squeeze.dim(unsqueeze, 1)",
        view="aten.view.default(squeeze, [2, -1])",
        exp="aten.exp.default(view)",
    )
    assert text(optimized(ir, ["reshapes"], exact=True)) == lines("""
        graph(x: float32[2, 3]) {
          exp: float32[2, 3] = aten.exp.default(self=x)
          return exp
        }
    """)


def test_other_readers_keep_what_they_read() -> None:
    """The first reshape is read twice, and is a view: the second one starts from x, at no cost."""
    ir = small(
        "x: float32[2, 3]",
        ["exp", "sin"],
        flat="aten.view.default(x, [6])",
        exp="aten.exp.default(flat)",
        back="aten.view.default(flat, [3, 2])",
        sin="aten.sin.default(back)",
    )
    after = optimized(ir, ["reshapes"], exact=True)
    assert [(node.op_type, node.inputs[0].name) for node in after.nodes if "reshape" in node.op_type] == [
        ("aten.reshape.default", "x"),
        ("aten.reshape.default", "x"),
    ]


def test_a_copy_that_others_read_is_made_once() -> None:
    """A reshape of transposed elements copies; views of the copy stay views."""
    ir = small(
        "x: float32[2, 3]",
        ["exp", "sin"],
        t="aten.t.default(x)",
        flat="aten.reshape.default(t, [6])",
        exp="aten.exp.default(flat)",
        pairs="aten.view.default(flat, [1, 6])",
        sin="aten.sin.default(pairs)",
    )
    after, report = proved(ir, ["reshapes"], exact=True)
    assert [node.inputs[0].name for node in after.nodes if "reshape" in node.op_type] == ["t", "flat"]
    assert {decline.why for decline in report.declined} == {"the first reshape copies, and another node reads the copy"}


def test_a_copy_that_packs_elements_stays() -> None:
    """Afterwards it is a transposed tensor with other strides: no kernel gets other strides."""
    ir = small(
        "x: float32[2, 3]",
        t="aten.t.default(x)",
        flat="aten.reshape.default(t, [6])",
        back="aten.reshape.default(flat, [3, 2])",
        mm="aten.mm.default(x, back)",
    )
    after = optimized(ir, ["reshapes"], exact=True)
    assert _ops(after) == ["t", "reshape", "reshape", "mm"]
    assert after.nodes[2].output.stride is None


def test_a_reshape_copies_by_itself() -> None:
    """view(contiguous(x)) is reshape(x), unless the copy has other consumers."""
    once = small(
        "x: float32[2, 3]",
        t="aten.t.default(x)",
        packed="aten.contiguous.default(t)",
        flat="aten.view.default(packed, [6])",
    )
    assert _ops(optimized(once, ["reshapes"], exact=True)) == ["t", "reshape"]
    twice = small(
        "x: float32[2, 3]",
        ["flat", "exp"],
        t="aten.t.default(x)",
        packed="aten.contiguous.default(t)",
        exp="aten.exp.default(packed)",
        flat="aten.view.default(packed, [6])",
    )
    assert _ops(optimized(twice, ["reshapes"], exact=True)) == ["t", "contiguous", "exp", "reshape"]


def test_a_view_that_the_caller_holds_stays_a_view() -> None:
    """It shared memory with the input before, and does so now; a copy stays a copy."""
    ir = small("x: float32[2, 3]", flat="aten.view.default(x, [6])")
    after = optimized(ir, ["reshapes"], exact=True)
    assert _ops(after) == ["reshape"]
    copied = small("x: float32[2, 3]", copy="aten.clone.default(x)", flat="aten.view.default(copy, [6])")
    assert _ops(optimized(copied, ["reshapes"], exact=True)) == ["clone", "reshape"]


def test_another_dtype_is_no_reshape() -> None:
    """view.dtype looks at the same bytes as other numbers."""
    ir = small("x: float32[2, 3]", bits="aten.view.dtype(x, Dtype('int32'))")
    assert [node.op_type for node in optimized(ir, ["reshapes"], exact=True).nodes] == ["aten.view.dtype"]


def test_open_sizes() -> None:
    """Sizes that are open are written as they are called."""

    class Heads(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = x.view(x.shape[0], -1, 2, 4).flatten(0, 1).unsqueeze(0)
            return heads.exp()

    ir = extract_ir(
        Heads().eval(),
        (torch.empty(3, 5, 8, device="meta"),),
        dynamic_shapes={"x": {0: Dim("batch", max=64), 1: Dim("seq", max=64)}},
    )
    after = optimized(ir, ["reshapes"], exact=True)
    assert _ops(after) == ["reshape", "exp"]
    assert after.nodes[0]["shape"] == [1, "batch * seq", 2, 4]


def test_two_ways_to_write_a_model_give_one_graph() -> None:
    """einops, view and flatten, squeeze and indexing: the graph is the same."""

    class One(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1).view(2, 1, 12).exp()

    class Other(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, -1)[:, None].exp()

    graphs = [
        optimized(
            extract_ir(model.eval(), (torch.empty(2, 3, 4, device="meta"),), model_name="model"),
            ["identities", "reshapes", "dead-code"],
        )
        for model in (One(), Other())
    ]
    assert _ops(graphs[0]) == ["reshape", "exp"]
    assert [(node.op_type, node.attrs) for node in graphs[0].nodes] == [
        (node.op_type, node.attrs) for node in graphs[1].nodes
    ]
