"""The example that writes a model as plain PyTorch: the written file computes the same as the model."""

import copy
import importlib.util
import random
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import catalogue
import torch_ir
from catalogue import Entry
from torch_ir import IR, OpNode, TensorMeta
from torch_ir.errors import CaptureWarning
from torch_ir.ir import Origin

EXAMPLE = Path(__file__).parents[1] / "examples" / "torch_code_target.py"
CONTROL_FLOW = ("control_flow", "while_loop")
ENTRIES = [entry for entry in catalogue.entries() if entry.name not in CONTROL_FLOW]
CHOSEN = (
    "cnn", "transformer_encoder", "decoder_kv_cache", "multi_output", "nested_inputs", "detection_head",
    "buffer_mutation", "shared_weights", "constants", "where",
)  # fmt: skip


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = imported(EXAMPLE)


def written(ir: IR, state: dict[str, Tensor], folder: Path) -> nn.Module:
    """The module of the written file, with the weights of the original."""
    path = folder / "written.py"
    path.write_text(example.to_code(ir))
    model: nn.Module = list(vars(imported(path)).values())[-1]().eval()
    model.load_state_dict(copy.deepcopy(state))
    return model


def assert_same(got: Any, wanted: Any) -> None:
    """The same nesting, and the same numbers, bit for bit."""
    found, spec = pytree.tree_flatten(got)
    expected, wanted_spec = pytree.tree_flatten(wanted)
    assert spec == wanted_spec
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def check(entry: Entry, folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)
            ir = torch_ir.extract_ir(model, inputs, kwargs=kwargs, strict=False)
        same = written(ir, model.state_dict(), folder)
        given, given_kwargs = copy.deepcopy((inputs, kwargs))
        torch.manual_seed(1)
        wanted = model(*inputs, **kwargs)
        torch.manual_seed(1)
        assert_same(same(*given, **given_kwargs), wanted)
    assert_same(given, inputs)
    assert_same(dict(sorted(same.state_dict().items())), dict(sorted(model.state_dict().items())))


@pytest.mark.parametrize("name", CHOSEN)
def test_a_written_model_computes_the_same(name: str, tmp_path: Path) -> None:
    """Results, changed inputs and changed state are those of the original; the state dict fits exactly."""
    check(catalogue.find(name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_catalogue_computes_the_same(entry: Entry, tmp_path: Path) -> None:
    check(entry, tmp_path)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.register_buffer("shift", torch.tensor([1.0, float("inf")]), persistent=False)

    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        y = self.layers[1](torch.relu(self.layers[0](x))) * scale
        return {"first": y[:, 1:3].reshape(x.shape[0] * 2), "shift": self.shift}


def test_what_is_written(tmp_path: Path) -> None:
    """Modules as comments, weights by their keys, nicer spellings, sizes that vary, keywords and nested outputs."""
    model, x, scale = Block().eval(), torch.randn(3, 4), torch.randn(4)
    ir = torch_ir.extract_ir(
        model, (x,), kwargs={"scale": scale}, strict=False, dynamic_shapes={"x": {0: Dim("batch")}, "scale": None}
    )
    source = example.to_code(ir)
    assert source[source.index("class Block") :] == EXPECTED
    same = written(ir, model.state_dict(), tmp_path)
    with torch.no_grad():
        assert_same(same(x, scale=scale), model(x, scale=scale))
        assert_same(same(x[:2], scale=scale), model(x[:2], scale=scale))


EXPECTED = """\
class Block(Part):
    def __init__(self):
        super().__init__()
        self.declare(nn.Parameter(torch.empty([4, 4])), 'layers.0.weight')
        self.declare(nn.Parameter(torch.empty([4])), 'layers.0.bias')
        self.declare(nn.Parameter(torch.empty([4])), 'layers.1.weight')
        self.declare(nn.Parameter(torch.empty([4])), 'layers.1.bias')
        self.declare(torch.tensor([1.0, float('inf')], dtype=torch.float32), 'shift', persistent=False)

    def forward(self, x, scale):
        batch = int(x.shape[0])
        # layers.0: Linear
        linear = F.linear(x, self.layers[0].weight, self.layers[0].bias)
        # the model: Block
        relu = F.relu(linear)
        # layers.1: LayerNorm
        norm = F.layer_norm(relu, normalized_shape=[4], weight=self.layers[1].weight, bias=self.layers[1].bias)
        # the model: Block
        mul = norm * scale
        slice = mul[0:]
        slice_1 = slice[:, 1:3]
        reshape = slice_1.reshape([(2 * batch)])
        result = {'first': reshape, 'shift': self.shift}
        return result
"""


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_what_it_cannot_say_is_listed(name: str) -> None:
    """Control flow has no spelling here; the error is the target's work list."""
    entry = catalogue.find(name)
    ir = torch_ir.extract_ir(entry.build(), entry.inputs(), kwargs=entry.kwargs(), strict=False)
    with pytest.raises(torch_ir.ConversionError, match=r"not supported by torch code yet:\n.*\n +higher_order\."):
        example.to_code(ir)


def test_names_of_a_graph_do_not_become_code(tmp_path: Path) -> None:
    """An input or module with a hostile name is refused, or written as a text."""
    trap = f"__import__(chr(111)+chr(115)).mkdir({'+'.join(f'chr({ord(c)})' for c in str(tmp_path / 'trap'))})"
    x, y = TensorMeta(f"x=[{trap}]", (1,), "float32"), TensorMeta("y", (1,), "float32")
    with pytest.raises(torch_ir.ConversionError, match="cannot be written in Python"):
        example.to_code(IR([OpNode("y", "aten.neg.default", [x], [y], args=["self"])], [x], [y]).check())
    x = TensorMeta("x", (1,), "float32")
    origin = Origin(f"layer\n        {trap}  #")
    ir = IR([OpNode("y", "aten.neg.default", [x], [y], args=["self"], origin=origin)], [x], [y])
    (result,) = written(ir, {}, tmp_path)(torch.ones(1))
    assert result == -1
    assert not (tmp_path / "trap").exists()


def test_a_random_order_of_models_changes_nothing() -> None:
    """Registrations for one model do not affect another."""
    graphs = []
    for name in ("mlp", "cnn", "where", "lstm"):
        entry = catalogue.find(name)
        graphs.append(torch_ir.extract_ir(entry.build(), entry.inputs(), strict=False))
    texts = [example.to_code(ir) for ir in graphs]
    order = random.Random(0).sample(range(len(graphs)), len(graphs))
    assert [example.to_code(graphs[index]) for index in order] == [texts[index] for index in order]


def test_from_a_shell(programs: Path | None) -> None:
    """It prints the file of a model of the catalogue."""
    python = sys.executable if programs is None else programs / "python"
    done = subprocess.run([python, EXAMPLE], check=True, capture_output=True, text=True)
    assert "        linear = F.linear(x, self.fc1.weight, self.fc1.bias)\n" in done.stdout
