"""What happened between two graphs, as the origins of their nodes say it: folded, fused, merged, rewritten, removed."""

import torch
from torch import nn

from tests.graphs import mlp
from tests.proof import captured
from torch_ir import IR, diff, optimize
from torch_ir.analysis.dependencies.over_weights import hoisted, over_weights
from torch_ir.analysis.graph_diff.diff_text import as_markdown, as_text
from torch_ir.analysis.graph_diff.events import events, paired


class Convolutions(nn.Module):
    """Convolutions with batch norms; activations follow all but the first."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(count))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x))
            if at:
                x = torch.relu(x)
        return x.flatten(1)


def convolutions() -> IR:
    return captured(Convolutions().eval(), torch.ones(2, 4, 6, 6))


def titles(before: IR, after: IR) -> list[str]:
    return [event.title for event in events(diff(before, after))]


def test_a_convolution_that_absorbed_its_norm_has_changed() -> None:
    """It is neither added nor removed; the norm is removed, and the new nodes over weights are one event."""
    before = convolutions()
    after, report = optimize(before, "basic")
    found = diff(before, after)
    rows = paired(found)
    changed = [row.node.op_type for row in rows if row.status == "changed" and row.first and row.second]
    assert changed.count("aten.conv2d.default") == 3
    assert [row.node.op_type for row in rows if row.status == "removed"] == ["aten.batch_norm.default"] * 3
    folded = next(row.changes for row in report.passes if row.name == "fold-batch-norm")
    assert titles(before, after) == [
        f"folded {folded} batch_norm into conv2d",
        "rewrote flatten as reshape, once",
        f"{report.after.once} nodes computed once, over weights",
    ]


def test_the_report_begins_with_what_passes_did() -> None:
    """As text below the summary, and as a list in Markdown; graphs of different models have no such lines."""
    before = convolutions()
    found = diff(before, optimize(before, "basic")[0])
    assert as_text(found, {}).split("\n")[1:3] == [
        "  folded 3 batch_norm into conv2d",
        "  rewrote flatten as reshape, once",
    ]
    assert "\n\n- folded 3 batch\\_norm into conv2d\n" in as_markdown(found, {})
    assert as_text(diff(before, mlp()), {}).split("\n")[1] == ""


def test_a_fused_operator_replaces_what_it_computes() -> None:
    """Of conv2d, batch_norm and relu in one operator, the norm was folded, and the rest fused."""
    before = convolutions()
    after, _ = optimize(before, "full")
    found = diff(before, after)
    assert titles(before, after)[:2] == [
        "folded 3 batch_norm into conv2d",
        "fused conv2d + relu into conv2d_relu, 2 times",
    ]
    pairs = {(row.first.op_type, row.second.op_type) for row in paired(found) if row.first and row.second}
    assert ("aten.conv2d.default", "fused.conv2d_relu") in pairs


def test_each_difference_belongs_to_one_event() -> None:
    """Every row but the equal ones, once; a graph and itself have no events."""
    before = convolutions()
    after, _ = optimize(before, "full")
    found = diff(before, after)
    rows = paired(found)
    listed = [row for event in events(found, rows) for row in event.rows]
    assert len(listed) == len(set(listed)) == sum(row.status != "same" for row in rows)
    assert {row.first for row in rows if row.first} == set(found.first.nodes)
    assert {row.second for row in rows if row.second} == set(found.second.nodes)
    assert events(diff(before, before)) == []


def test_merged_projections() -> None:
    """Three linear layers that read one value become one, and a split."""

    class Projections(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.q(x) * self.k(x), -1) @ self.v(x)

    before = captured(Projections().eval(), torch.ones(8, 8))
    after, _ = optimize(before, passes=["merge-projections"])
    assert titles(before, after)[0].startswith("merged linear \N{MULTIPLICATION SIGN}3 into linear + ")


def test_another_model_was_added_and_removed() -> None:
    """Without passes, nothing says that one operator replaces another."""
    before, after = mlp(), mlp()
    after.nodes[1].op_type = "aten.tanh.default"
    found = titles(before, after)
    assert found[-2:] == ["removed 1 node", "added 1 node"]


def test_buffers_that_change_are_not_computed_once() -> None:
    """What reads a counter that the model increases is computed in every run."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.register_buffer("count", torch.zeros(4))
            self.count: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = self.weight.exp() + 1
            self.count += 1
            return x * scale + self.count

    ir = captured(Counting().eval(), torch.ones(4))
    names = [node.op_type for node in over_weights(ir)]
    assert names == ["aten.exp.default", "aten.add.Tensor"]
    assert [node.op_type for node in hoisted(ir)] == names
