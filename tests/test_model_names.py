"""Models by name: every form, with every command, and the errors for wrong names."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import Dim

import torch_ir
from torch_ir.cli.dispatch import main
from torch_ir.cli.models.model_kinds import is_model
from torch_ir.ir import IR

NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.head = nn.Linear(width, 3)

    def forward(self, ids, mask=None, *, scale=1.0, times: int = 1, flag=True):
        hidden = self.embed(ids)
        hidden = hidden if mask is None else hidden * mask[..., None]
        for _ in range(times):
            hidden = hidden.relu()
        return self.head(hidden * scale if flag else -hidden)

class Scorer(nn.Module):
    def forward(self, query, options, pair):
        scores = query @ options["keys"].T + pair[0] - pair[1]
        return scores.topk(options["count"])

class Strided(nn.Module):
    def forward(self, x):
        return x.reshape(-1, 8).relu()

ready = nn.Linear(4, 2)
"""
LLAMA = "hf:llama?hidden_size=16&intermediate_size=24&num_hidden_layers=1&num_attention_heads=2&vocab_size=32"
BERT = "hf:bert?hidden_size=16&intermediate_size=24&num_hidden_layers=1&num_attention_heads=2&vocab_size=32"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a user's models in it, as the current one."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("net", "net_file"):
        sys.modules.pop(name, None)


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error of a failing command: one line, after the notes that it gave."""
    capsys.readouterr()
    assert main(list(arguments)) == 1
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("torch-ir: note: ")]
    assert out == ""
    assert len(lines) == 1, err
    return lines[0].removeprefix("torch-ir: error: ")


def extracted(*arguments: str) -> IR:
    assert main(["extract", *arguments, "-o", "graph.json"]) == 0
    return IR.load("graph.json")


def parameters(ir: IR) -> dict[str, tuple[Any, ...]]:
    return {str(param.key): param.shape for param in ir.params}


# -- the user's own ---------------------------------------------------------------------------------------------------


def test_factories_take_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """The text after `?` contains arguments of the class or function."""
    assert parameters(extracted("net.py:Net?width=4", "-i", "i64[2,3]"))["head.weight"] == (3, 4)
    assert "unexpected keyword argument 'wide'" in failure(capsys, "extract", "net.py:Net?wide=4", "-i", "i64[2,3]")
    assert (
        failure(capsys, "extract", "net.py:ready?a=1")
        == "net.py:ready?a=1: this is already a model and takes no settings"
    )


def test_plain_values_are_fixed_in_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags, numbers and None; a bare number is one if the argument accepts numbers."""
    words = ["-i", "i64[2,3]", "-i", "flag=false", "-i", "times=2", "-i", "scale:=2", "-i", "mask=none"]
    ir = extracted("net.py:Net", *words)
    assert [node.op_type for node in ir.nodes].count("aten.relu.default") == 2
    assert [node.op_type for node in ir.nodes].count("aten.neg.default") == 1
    assert [tensor.name for tensor in ir.graph_inputs] == ["ids"]
    assert main(["verify", "graph.json", "net.py:Net"]) == 0
    fixed = failure(capsys, "verify", "graph.json", "net.py:Net", "-i", "flag=true")
    assert fixed == "'flag' is not a tensor input: its value was fixed at capture; leave it out"


def test_nested_inputs_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Dots reach into dicts and lists, for capturing and for running."""
    words = ["-i", "query=2x8", "-i", "options.keys=10x8", "-i", "pair.0=f32[]", "-i", "pair.1=f32[]"]
    ir = extracted("net.py:Scorer", *words, "-i", "options.count:=3")
    assert [tensor.name for tensor in ir.graph_inputs] == ["query", "options_keys", "pair_0", "pair_1"]
    assert main(["run", "graph.json", "-w", "random", *words]) == 0
    assert "is given twice, once inside another" in failure(
        capsys, "extract", "net.py:Scorer", "-i", "options=2x8", "-i", "options.keys=2x8"
    )


def test_every_input_from_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    """One file serves for capturing, running and verifying, including values that are not tensors."""
    torch.save({"ids": torch.tensor([[1, 2, 3]]), "mask": torch.ones(1, 3), "flag": False}, "inputs.pt")
    ir = extracted("net.py:Net", "-i", "@inputs.pt")
    assert [tensor.shape for tensor in ir.graph_inputs] == [(1, 3), (1, 3)]
    assert main(["verify", "graph.json", "net.py:Net", "-i", "@inputs.pt"]) == 0
    assert main(["run", "graph.json", "-w", "random", "-i", "@inputs.pt"]) == 0


def test_ranges_and_sizes_made_of_names() -> None:
    """Brackets give the range of a size; the graph keeps it."""
    ir = extracted("net.py:Net", "-i", "i64[batch=1..32,2<=seq<=64]")
    assert (ir.symbols["batch"].max, ir.symbols["seq"].min, ir.symbols["seq"].max) == (32, 2, 64)
    ir = extracted("net.py:Strided", "-i", "f32[8*n,3]", "-d", "n=1..16")
    assert ir.graph_inputs[0].shape == ("8 * n", 3)
    assert main(["verify", "graph.json", "net.py:Strided", "-d", "n=5"]) == 0
    assert main(["run", "graph.json", "-w", "random", "-i", "24x3"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["net.py:Net"],
            'Net.forward(ids, mask=None, *, scale=1.0, times=1, flag=True) needs inputs; give them, as in --input "ids',
        ),
        (["net.py:Net", "-i", "i64[batch<=4]", "-d", "batch=9"], "the size 'batch' has two different ranges; give one"),
        (["net.py:Net", "-i", "@inputs.npz"], "no such file: inputs.npz"),
        (["net.py"], "does not name a model; write package.module:Class or file.py:Class; net.py has Net"),
        (
            ["nothing"],
            "'nothing' is neither a file nor a model; write it as net.py:Net, package.module:Class, hf:llama,",
        ),
        (["lama"], "'lama' is neither a file nor a model; did you mean 'llama'?"),
    ],
)
def test_wrong_words(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """One sentence that names the nearest fix, and no file."""
    assert message in failure(capsys, "extract", *arguments)
    assert sorted(path.name for path in Path().iterdir() if path.suffix == ".json") == []


def test_inputs_whose_parts_have_no_names() -> None:
    """A class registered without names for its parts is an ExportError that says so."""

    class Pair:
        def __init__(self, first: Any, second: Any) -> None:
            self.first, self.second = first, second

    class Add(nn.Module):
        def forward(self, pair: Pair) -> Any:
            return pair.first + pair.second

    pytree.register_pytree_node(Pair, lambda pair: ([pair.first, pair.second], None), lambda parts, _: Pair(*parts))
    with pytest.raises(torch_ir.ExportError, match="pass flatten_with_keys_fn to register_pytree_node"):
        torch_ir.extract_ir(Add().eval(), (Pair(torch.zeros(2), torch.ones(2)),), strict=False)


# -- where the graph goes ---------------------------------------------------------------------------------------------


def test_without_an_output_the_file_is_named_after_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """A new file; one that is there is not written over unasked."""
    assert main(["extract", "net.py:ready", "-i", "1x4"]) == 0
    assert capsys.readouterr().out.endswith("bytes)\n")
    assert IR.load("Linear.json").model_name == "Linear"
    told = failure(capsys, "extract", "net.py:ready", "-i", "1x4")
    assert told == "Linear.json already exists; to overwrite it, add -o Linear.json"
    assert main(["extract", "net.py:ready", "-i", "1x4", "--name", "../a b"]) == 0
    assert Path("_a_b.json").exists()


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_graph_on_stdout_is_alone_there(capsys: pytest.CaptureFixture[str], output: str, more: list[str]) -> None:
    """The summary is then printed to stderr, without a file name."""
    assert main(["extract", "net.py:ready", "-i", "1x4", "-o", output, *more]) == 0
    out, err = capsys.readouterr()
    assert torch_ir.deserialize_ir(out).model_name == "Linear"
    if more:
        assert json.loads(err)["file"] == "-"
    else:
        assert re.fullmatch(r"Linear: 1 node, 2 weights, 10 parameters in [\d.]+ s -> stdout\n", err)


# -- torch.export's files ---------------------------------------------------------------------------------------------


class Program(nn.Module):
    """With every kind of weight, and a flag that is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("unkept", torch.arange(3.0), persistent=False)
        self.plain = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x: torch.Tensor, *, flag: bool = False) -> Any:
        return self.linear(x) * self.kept + self.unkept + self.plain if flag else x


def save_program(name: str) -> None:
    shapes = {"x": {0: Dim("batch", max=32)}, "flag": None}
    program = torch.export.export(Program().eval(), (torch.zeros(2, 4),), {"flag": True}, dynamic_shapes=shapes)
    torch.export.save(program, name)


def test_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """A saved program brings its inputs and sizes along, and verifies against its own weights."""
    save_program("model.pt2")
    assert main(["extract", "model.pt2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["model_name"], facts["file"], facts["notes"]) == ("model", "model.json", [])
    (size,) = IR.load("model.json").symbols
    assert main(["verify", "model.json", "model.pt2", "-d", f"{size}=5"]) == 0
    assert main(["golden", "model.json", "model.pt2", "-d", f"{size}=5", "-o", "pack"]) == 0
    assert main(["cost", "model.pt2", "--set", f"{size}=2"]) == 0
    capsys.readouterr()
    assert main(["extract", "model.pt2", "-i", "1x4", "--crosscheck", "-o", "again.json"]) == 0
    told = "torch-ir: note: model.pt2 was captured when it was exported; --input and --crosscheck had no effect\n"
    assert capsys.readouterr().err == told
    torch.save(nn.Linear(4, 3).state_dict(), "w.pt")
    blocks = ["verify", "model.json", "model.pt2", "-d", f"{size}=5", "--blockwise", "-w", "w.pt"]
    assert "builds the model without weights, but model.pt2 contains them" in failure(capsys, *blocks)


@pytest.mark.parametrize("damage", ["empty", "text", "cut"])
def test_damaged_programs_are_one_line(capfd: pytest.CaptureFixture[str], damage: str) -> None:
    """And torch's log messages about them are suppressed."""
    save_program("good.pt2")
    whole = Path("good.pt2").read_bytes()
    Path("bad.pt2").write_bytes({"empty": b"", "text": b"hello\n" * 100, "cut": whole[: len(whole) // 2]}[damage])
    told = failure(capfd, "extract", "bad.pt2")
    assert told.startswith("cannot read bad.pt2 as an exported program: ")
    assert failure(capfd, "extract", "none.pt2") == "no such file: none.pt2"


# -- transformers -----------------------------------------------------------------------------------------------------


def test_causal_models_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    """By type and settings, without a cache; the default inputs are printed; graph and model get equal weights."""
    ir = extracted(LLAMA)
    assert capsys.readouterr().err == "torch-ir: note: no --input given; using input_ids=int64[1,128]\n"
    assert ir.model_name == "LlamaForCausalLM"
    assert [tensor.name for tensor in ir.graph_inputs] == ["input_ids"]
    assert len(ir.graph_outputs) == 1
    assert main(["verify", "graph.json", LLAMA]) == 0
    assert main(["extract", LLAMA.removeprefix("hf:"), "-q", "-i", "i64[1,seq>=2]", "-o", "graph.json"]) == 0
    assert IR.load("graph.json").graph_inputs[0].shape == (1, "seq")


def test_folders_with_a_configuration_and_weights() -> None:
    """A checkpoint with one of two tied weights is accepted; a folder and its config.json name the same model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "bos_token_id": 0, "eos_token_id": 0}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **settings)).save_pretrained("checkpoint")
    assert extracted("checkpoint").model_name == "GPT2LMHeadModel"
    assert main(["verify", "graph.json", "checkpoint", "--weights", "checkpoint"]) == 0
    assert extracted("checkpoint/config.json?n_layer=2&class=GPT2Model").model_name == "GPT2Model"
    assert main(["bench", "graph.json", "--model", "checkpoint?n_layer=2&class=GPT2Model", "--repeat", "1"]) == 0


@pytest.mark.parametrize(
    ("text", "name", "inputs"),
    [
        (BERT, "BertModel", ["input_ids"]),
        (f"{BERT}&class=BertForMaskedLM", "BertForMaskedLM", ["input_ids"]),
        (
            "hf:t5?d_model=16&d_kv=8&d_ff=24&num_layers=1&num_heads=2&vocab_size=32",
            "T5ForConditionalGeneration",
            ["input_ids", "decoder_input_ids"],
        ),
        (
            "hf:vit?hidden_size=16&intermediate_size=24&num_hidden_layers=1&num_attention_heads=2&image_size=32&patch_size=16",
            "ViTModel",
            ["pixel_values"],
        ),
    ],
)
def test_other_models_of_transformers(text: str, name: str, inputs: list[str]) -> None:
    """The usual class of a type, or the requested class, with its inputs."""
    ir = extracted(text)
    assert ir.model_name == name
    assert [tensor.name for tensor in ir.graph_inputs] == inputs


def test_how_attention_is_computed() -> None:
    """A setting that configurations keep under another name."""
    ir = extracted("hf:bert?attn_implementation=eager&num_hidden_layers=1&hidden_size=16&num_attention_heads=2")
    assert "aten.softmax.int" in {node.op_type for node in ir.nodes}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "hf:lama",
            "'lama' is neither a folder with a config.json nor a model type of transformers; did you mean 'llama'?",
        ),
        ("hf:llama?hiden_size=8", "llama has no setting 'hiden_size'; did you mean 'hidden_size'?"),
        ("hf:llama?hidden_size", "'hidden_size' is not a setting; write it as hf:llama?key=value&other=value"),
        ("hf:bert?class=BertForMaskdLM", "transformers has no model 'BertForMaskdLM'; did you mean 'BertForMaskedLM'?"),
        ("hf:llama?class=BertModel", "BertModel is built from a BertConfig, not from a LlamaConfig"),
        (
            "hf:bert?hidden_size=10",
            "building hf:bert?hidden_size=10 failed: ValueError: The hidden size (10) is not a multi",
        ),
        ("net.py:Net(width=6)", "is a call; write its arguments as settings: net.py:Net?name=value"),
        ("folder", "folder: "),
        ("folder/config.json?n_layers=1", "folder/config.json?n_layers=1: "),
    ],
)
def test_wrong_configurations(capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    """One sentence that names the nearest fix."""
    Path("folder").mkdir()
    Path("folder/config.json").write_text("{")
    assert message in failure(capsys, "extract", text, "-o", "x.json")


# -- timm -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_large_models_are_not_filled_with_random_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Without weights from a file, a model too large for memory is rejected before it is built."""
    assert main(["extract", LLAMA, "-o", "llama.json"]) == 0
    capsys.readouterr()
    told = failure(capsys, "verify", "llama.json", "hf:llama")
    assert told.startswith("hf:llama has 6,738,415,616 weights, too many to fill with random numbers; give --weights")


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_timm_is_an_extra(capsys: pytest.CaptureFixture[str]) -> None:
    """If it is missing, the error says how to install it."""
    told = failure(capsys, "extract", "timm:resnet50")
    assert told == "a model of timm needs timm; install it with: pip install 'torch-ir[timm]'"


def test_a_broken_timm_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one with a torchvision for another torch; names of other models are not hurt."""
    Path("timm").mkdir()
    Path("timm/__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    told = failure(capsys, "extract", "timm:resnet50")
    assert told == "timm is installed, but importing it fails: operator torchvision::nms does not exist"
    assert "'resnet_50' is neither a file nor a model" in failure(capsys, "extract", "resnet_50")


def test_models_of_timm(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, with settings, with timm's input size; a bare name if no other source has it."""
    pytest.importorskip("timm", reason="timm needs a torchvision that fits this torch")
    ir = extracted("timm:resnet18?num_classes=10&in_chans=1")
    assert capsys.readouterr().err == "torch-ir: note: no --input given; using float32[1,1,224,224]\n"
    assert parameters(ir)["fc.weight"] == (10, 512)
    assert main(["verify", "graph.json", "timm:resnet18?num_classes=10&in_chans=1", "--no-probe"]) == 0
    assert extracted("vit_tiny_patch16_224?img_size=64").graph_inputs[0].shape == (1, 3, 64, 64)
    unknown = [
        param for param in extracted("levit_128s").params if param.param.kind == "temporary" and not param.param.data
    ]
    assert unknown == []
    told = failure(capsys, "extract", "timm:resnet19")
    assert told == "timm has no model 'resnet19'; did you mean 'resnet18'?"


# -- verbs that take a model or a file --------------------------------------------------------------------------------


def test_models_where_a_graph_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    """The graph is captured on the spot, with the same options as by `extract`."""
    model = ["net.py:Net", "-i", "i64[2,seq<=64]"]
    extracted(*model)
    capsys.readouterr()
    assert main(["cost", *model, "--set", "seq=16"]) == 0
    on_the_spot = capsys.readouterr().out
    assert main(["cost", "graph.json", "--set", "seq=16"]) == 0
    assert capsys.readouterr().out == on_the_spot
    assert main(["optimize", *model, "--verify", "-o", "better.json"]) == 0
    assert IR.load("better.json").symbols["seq"].max == 64
    Path("npu.toml").write_text('name = "npu"\n[[ops]]\nop = ["aten.relu"]\n')
    capsys.readouterr()
    assert main(["coverage", "net.py:Net", "-i", "i64[batch,3]", "-d", "batch=4", "--target", "npu.toml"]) == 0
    assert "aten.embedding" in capsys.readouterr().out
    Path("target.py").write_text('import torch_ir\nnpu = torch_ir.Target("npu")\n')
    assert main(["lower", *model, "--target", "target.py:npu"]) == 0
    assert main(["draw", *model, "-o", "net.svg"]) == 0
    assert main(["explore", *model, "-o", "net.html"]) == 0
    capsys.readouterr()
    for verb in ("info", "ops"):
        assert main([verb, *model]) == 0
        assert "aten.embedding.default" in capsys.readouterr().out


def test_a_file_needs_no_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    """Options for capturing are rejected with a graph file, and a missing file is reported as usual."""
    extracted("net.py:ready", "-i", "1x4")
    told = failure(capsys, "cost", "graph.json", "-i", "1x4")
    assert told == "--input controls the capture of a model, but graph.json is already a graph"
    assert failure(capsys, "cost", "none.json") == "cannot read none.json: No such file or directory"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:llama", True),
        ("timm:resnet50", True),
        ("resnet50", True),
        ("model.pt2", True),
        ("net.py", True),
        ("net.py:Net", True),
        ("package.models:make", True),
        ("folder", True),
        ("folder/config.json?n_layer=2", True),
        ("empty", False),
        ("model.json", False),
        ("c:/models/model.json", False),
        ("model.pb", False),
        ("graph:1", False),
    ],
)
def test_what_is_a_model(text: str, expected: bool) -> None:
    """Recognised by the name and by the file."""
    for name in ("folder", "empty"):
        Path(name).mkdir()
    Path("folder/config.json").write_text("{}")
    Path("graph:1").write_text("{}")
    assert is_model(text) is expected
