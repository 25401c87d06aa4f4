"""extract_ir: nested inputs and outputs, arguments by name, and origins of nodes."""

import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.proof import captured, line_of, module, ops, proved
from torch_ir import (
    IR,
    IRExecutor,
    extract_ir,
)
from torch_ir.ir import Device, Dtype, Layout, MemoryFormat

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


# -- inputs and outputs ----------------------------------------------------------------------------------------------


def test_keyword_and_nested_inputs() -> None:
    """Inputs may be keywords, dicts, lists and tuples of tensors; numbers, strings, flags and None are fixed."""

    def forward(self: Any, d: Any, pair: Any, flag: bool, *, scale: Tensor, mode: str, n: int, rest: Any) -> Tensor:
        y = d["a"] + d["b"][0] * pair[1] - pair[0]
        return (y * scale if flag and mode == "scale" else y) * n

    inputs = ({"a": X, "b": (X,)}, [X * 2, X * 3], True)
    kwargs = {"scale": X * 4, "mode": "scale", "n": 3, "rest": None}
    ir = proved(module(forward), *inputs, kwargs=kwargs)
    assert [tensor.name for tensor in ir.graph_inputs] == ["d_a", "d_b_0", "pair_0", "pair_1", "scale"]
    executor = IRExecutor(ir, {})
    assert torch.equal(executor(*inputs, **kwargs), module(forward)(*inputs, **kwargs))
    with pytest.raises(Exception, match=r"'n'\] is 4, but the graph was captured for 3"):
        executor(*inputs, **{**kwargs, "n": 4})
    with pytest.raises(Exception, match=r"expected a dict with keys \['a', 'b'\]"):
        executor({"a": X, "c": (X,)}, *inputs[1:], **kwargs)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Result:
    logits: Tensor
    extra: Any


pytree.register_dataclass(Result)


def test_outputs_keep_their_structure() -> None:
    """Dicts, named tuples, dataclasses, lists, None, numbers and strings keep their positions."""

    def forward(self: Any, x: Tensor) -> Any:
        y = x + 1
        return {"pair": Pair(y, x * 2), "result": Result(y, [None, 3, "text", 2.5, True]), "empty": (), "x": x}

    ir = proved(module(forward), X)
    got = IRExecutor(ir, {})(X)
    assert list(got) == ["pair", "result", "empty", "x"]
    assert torch.equal(got["pair"].second, X * 2)
    assert torch.equal(got["result"].logits, X + 1)
    assert got["result"].extra == [None, 3, "text", 2.5, True]
    assert got["empty"] == ()
    assert got["x"] is X


def test_model_output_of_transformers() -> None:
    """A transformers ModelOutput is read by its fields; absent fields are absent."""
    import transformers

    output = transformers.modeling_outputs.BaseModelOutput
    model = module(lambda self, x: output(last_hidden_state=self.layer(x)), layer=nn.Linear(4, 4))
    got = IRExecutor(proved(model, X), model.state_dict())(X)
    assert list(got) == ["last_hidden_state"]
    assert torch.equal(got.last_hidden_state, model(X).last_hidden_state)


def test_an_output_that_is_an_input() -> None:
    """A model may return its input; the graph then has no node."""
    ir = proved(module(lambda self, x: x), X)
    assert (ops(ir), ir.graph_outputs) == ([], ir.graph_inputs)


def test_an_output_twice() -> None:
    """The same tensor may be returned several times; it is one tensor with several readers."""

    def forward(self: Any, x: Tensor) -> Any:
        y = x + 1
        return y, [y], y

    ir = proved(module(forward), X)
    assert [tensor.name for tensor in ir.graph_outputs] == ["add", "add", "add"]
    first, [second], third = IRExecutor(ir, {})(X)
    assert first is second is third


def test_a_model_that_returns_none() -> None:
    """A model that only changes its buffer returns None, and so does the graph."""

    def forward(self: Any, x: Tensor) -> None:
        self.total.add_(x.sum(0))

    model = module(forward, buffers={"total": torch.zeros(4)})
    ir = proved(model, X)
    executor = IRExecutor(ir, {"total": torch.zeros(4)})
    assert executor(X) is None
    assert torch.allclose(executor.state["total"], X.sum(0))


def test_names_never_collide() -> None:
    """Inputs may have names of torch's results; outputs of one node are numbered."""

    def forward(self: Any, split_1: Tensor, add: Tensor) -> Any:
        left, right = split_1.split(2, 1)
        return left + right, add + 1, split_1

    ir = proved(module(forward), X, X)
    names = [tensor.name for tensor in ir.tensors()]
    assert names[:3] == ["split_1", "add", "split_0"]
    assert len(set(names)) == len(names)


def test_several_outputs_without_getitem() -> None:
    """An operator with several results has several outputs; reading one needs no node."""
    ir = proved(module(lambda self, x: (x.topk(2), torch.var_mean(x, 1)[0], x.chunk(2, 1)[1], x.max(1).indices)), X)
    assert ops(ir) == ["aten.topk.default", "aten.var_mean.dim", "aten.chunk.default", "aten.max.dim"]
    assert [[tensor.name for tensor in node.outputs] for node in ir.nodes] == [
        ["topk_0", "topk_1"],
        ["var_mean_0", "var_mean_1"],
        ["chunk_0", "chunk_1"],
        ["max_1_0", "max_1_1"],
    ]
    assert ir.nodes[0].outputs[1].dtype == "int64"


def test_an_output_that_is_a_list() -> None:
    """Where one result of an operator is a list of tensors, each of them is an output."""
    ir = captured(module(lambda self, x: torch.histogramdd(x, [2, 2, 2, 2])), X)
    names = [f"histogramdd_{part}" for part in ("0", "1_0", "1_1", "1_2", "1_3")]
    assert [tensor.name for tensor in ir.nodes[0].outputs] == names
    found, wanted = IRExecutor(ir, {})(X), torch.histogramdd(X, [2, 2, 2, 2])
    assert torch.equal(found.hist, wanted.hist)
    assert all(map(torch.equal, found.bin_edges, wanted.bin_edges))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_tensors_are_inputs_and_results() -> None:
    """A layout other than strided has no strides, and passes all the same."""
    matrix = torch.eye(4).to_sparse_csr()
    model = module(lambda self, sparse, x: torch.sparse.mm(sparse, x.T, "sum"))
    ir = IR.from_json(extract_ir(model, (matrix, X), strict=False).to_json())
    assert torch.equal(IRExecutor(ir, {})(matrix, X), X.T)


# -- arguments -------------------------------------------------------------------------------------------------------


def test_absent_optionals_are_none() -> None:
    """An absent optional tensor is None under its name, and later arguments keep their names."""
    ir = proved(
        module(lambda self, x, b: (F.layer_norm(x, (4,), None, b), x.clamp(max=b), F.linear(x, b.expand(4, 4)))),
        X,
        torch.randn(4),
    )
    norm, clamp, linear = ir.node("layer_norm"), ir.node("clamp"), ir.node("linear")
    assert (norm["weight"], norm["bias"].name, norm["normalized_shape"]) == (None, "b", [4])
    assert (clamp["min"], clamp["max"].name) == (None, "b")
    assert linear["bias"] is None


def test_keyword_only_arguments() -> None:
    """Arguments after omitted defaults are kept under their names, and the defaults are filled in."""

    def forward(self: Any, x: Tensor) -> Any:
        attended = F.scaled_dot_product_attention(x[None], x[None], x[None], scale=0.1)
        return attended, x.std(1, correction=0), x.mean(dtype=torch.float64), torch.searchsorted(x[0], x[1])

    ir = proved(module(forward), X.sort().values)
    attention = ir.node("scaled_dot_product_attention")
    assert (attention["scale"], attention["attn_mask"], attention["dropout_p"]) == (0.1, None, 0.0)
    assert (ir.node("std")["correction"], ir.node("std")["dim"]) == (0, [1])
    assert ir.node("mean")["dtype"] == Dtype("float64")


def test_every_kind_of_attribute() -> None:
    """dtype, device, layout, memory format, complex, infinities, NaN, large ints, lists, strings: one spelling each."""

    def forward(self: Any, x: Tensor) -> Any:
        return (
            x.to(torch.bfloat16),
            x.contiguous(memory_format=torch.channels_last),
            torch.full((2,), float("-inf")),
            torch.full((2,), float("nan")),
            torch.full((2,), 1 + 2j),
            torch.full((2,), 2**62),
            torch.zeros(2, dtype=torch.int8, device="cpu", layout=torch.strided),
            torch.einsum("abcd->a", x),
            x.sum([1, 2]),
            F.pad(x, (1, 1, 1, 1), mode="reflect"),
            F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True),
            x[..., None, 0, [0, 1]],
            x.to_sparse().to_dense(),
        )

    ir = proved(module(forward), torch.randn(2, 3, 4, 4))
    found = {type(value) for node in ir.nodes for value in node.attrs.values()}
    assert {Dtype, Device, Layout, MemoryFormat, complex, float, int, bool, str, list, type(None)} <= found


# -- where it came from ----------------------------------------------------------------------------------------------


class Block(nn.Module):
    def helper(self, x: Tensor) -> Tensor:
        return x * 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.helper(x)  # block: helper
        return F.gelu(x)  # block: gelu


class Nested(nn.Module):
    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.block = Block()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        x = self.block(x)
        if self.counts:
            self.steps.add_(1)  # nested: count
        return self.layers[0](x)  # nested: linear


@pytest.mark.parametrize("counts", [True, False], ids=["functionalised", "renamed"])
def test_provenance(counts: bool) -> None:
    """Each node has its module, the call, the module's class and the user's line, without machine-specific folders."""
    ir = captured(Nested(counts).eval(), X)
    found = [(node.origin.module, node.origin.call, node.origin.module_class, node.origin.source) for node in ir.nodes]
    assert found == [
        ("block", 0, "Block", line_of(__file__, "block: helper")),
        ("block", 0, "Block", line_of(__file__, "block: gelu")),
        ("block", 1, "Block", line_of(__file__, "block: helper")),
        ("block", 1, "Block", line_of(__file__, "block: gelu")),
        *([("", 0, "Nested", line_of(__file__, "nested: count"))] if counts else []),
        ("layers.0", 0, "Linear", line_of(__file__, "nested: linear")),
    ]
    text = ir.to_json()
    assert os.path.dirname(__file__) not in text
    assert "site-packages" not in text


def test_same_bytes_in_every_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This process, which has captured many models, and a fresh one with another hash seed write the same file."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch_ir\n"
        "from torch import nn\n"
        "from torch.export import Dim\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(4, 4)\n"
        "        self.register_buffer('seen', torch.zeros(4))\n"
        "        self.table = {'a': torch.arange(4.0), 'b': torch.ones(4)}\n"
        "    def forward(self, x, y):\n"
        "        self.seen.add_(x.sum(0))\n"
        "        x = torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: x * 2, (x,))\n"
        "        return {'out': x * self.table['a'] + self.table['b'], 'rows': (x + y)[x[:, 0] > 0], 'n': x.shape[0]}\n"
        "shapes = {'x': {0: Dim('batch', max=64)}, 'y': {0: Dim('batch', max=64)}}\n"
        "inputs = (torch.randn(3, 4), torch.randn(3, 4))\n"
        "ir = torch_ir.extract_ir(Model().eval(), inputs, strict=False, dynamic_shapes=shapes)\n"
        "sys.stdout.write(ir.to_json())\n"
    )
    runpy.run_path(str(script), run_name="__main__")
    here = capsys.readouterr().out
    seed = "77" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    run = subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == here
    assert IR.from_json(here).symbols.keys() == {"batch", "u0"}
