"""Whatever builds a graph from another keeps its header: each field, or the test says why not."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.proof import captured
from torch_ir import IR, ExecutionError, IRExecutor, optimize, shard, split, stage_of
from torch_ir.analysis import subgraph
from torch_ir.ops.prepare_run import with_named_arguments
from torch_ir.quantization import quantize
from torch_ir.run.binding import bind
from torch_ir.run.weight_files import random_weights

# What the parts of a graph are; all other parameters of its constructor are the header.
PARTS = {
    "nodes", "graph_inputs", "graph_outputs", "weights", "weight_name_mapping", "constants", "params", "mutations",
    "functions", "symbols", "constraints", "input_tree", "output_tree",
}  # fmt: skip
HEADER = set(list(inspect.signature(IR.__init__).parameters)[1:]) - PARTS


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu()) * 1.0


def whole() -> IR:
    """Two blocks, with every field of the header set."""
    ir = captured(nn.Sequential(Block(), Block()).eval(), torch.randn(2, 8), dynamic_shapes=None)
    ir.fixed_layout, ir.extensions = "model.py:3", {"tool": [1]}
    assert not [name for name in HEADER - {"mesh"} if not getattr(ir, name)]
    return ir


def _cut(ir: IR) -> IR:
    return subgraph(ir, ir.graph_inputs, ir.graph_outputs)


REBUILT: dict[str, tuple[Callable[[IR], IR], set[str]]] = {
    "clone": (IR.clone, set()),
    "copy": (copy.copy, set()),
    "pickle": (lambda ir: pickle.loads(pickle.dumps(ir)), set()),
    "replaced": (IR.replaced, set()),
    "JSON": (lambda ir: IR.from_json(ir.to_json()), set()),
    "text": (lambda ir: IR.parse(ir.to_text()), {"pytorch_version", "modules"}),  # the text form lacks them
    "blocks": (IR.fold_blocks, set()),
    "level": (lambda ir: ir.at_level("module"), set()),
    "specialised": (IR.specialize, set()),
    "optimised": (lambda ir: optimize(ir, "full", by_block=True)[0], set()),
    "named": (with_named_arguments, set()),
    "bound": (lambda ir: bind(ir, random_weights(ir))[0], set()),
    "quantised": (lambda ir: quantize(ir, "int8")[0], {"extensions", "modules"}),  # with the recipe, without the layers
    "sharded": (lambda ir: shard(ir, {}, {"tp": 2}), {"mesh"}),
    "pipeline": (lambda ir: split(ir, stages=2), set()),
    "stage": (lambda ir: stage_of(split(ir, stages=2), 0), {"model_name", "extensions"}),  # of the whole graph
    "part": (_cut, {"extensions"}),  # they describe the whole graph
}


@pytest.mark.parametrize("name", REBUILT)
def test_a_header_is_kept(name: str) -> None:
    """All fields but those that the new graph must not have."""
    change, others = REBUILT[name]
    ir = whole()
    before = {field: copy.deepcopy(getattr(ir, field)) for field in HEADER}
    after: Any = change(ir)
    assert {field for field in HEADER if getattr(after, field) != before[field]} == others


def test_a_part_rejects_the_layouts_that_the_whole_graph_rejects() -> None:
    """A graph of a model that reads strides is for inputs of the captured layout, and so is each part of it."""
    ir = whole()
    part = subgraph(ir, ir.graph_inputs, [ir.nodes[1].output])
    x = torch.randn(8, 2).t()
    for graph in (ir, part):
        with pytest.raises(ExecutionError, match="depends on strides"):
            IRExecutor(graph, random_weights(graph)).run([x])
