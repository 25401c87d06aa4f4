"""LoRA adapters of PEFT: merged into the weights, or as inputs that each row of a batch chooses."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from torch_ir import IR, IRExecutor, WeightLoadError, load_weights, optimize
from torch_ir.cli.dispatch import main
from torch_ir.llm import extract_llm, generate, lora_as_inputs, lora_inputs, merge_lora

CONFIG = LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=99,
    max_position_embeddings=64,
    initializer_range=0.2,
)
FILE = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).eval()


@pytest.fixture(scope="module")
def graph() -> IR:
    return extract_llm(CONFIG)


def write_adapter(model: nn.Module, folder: Path, ends: tuple[str, ...], rank: int, **config: Any) -> Path:
    """Write random factors for the linear layers whose names end so, in the files of PEFT."""
    tensors: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(rank)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.endswith(ends):
            down = torch.randn(rank, module.in_features, generator=generator) / 10
            up = torch.randn(module.out_features, rank, generator=generator) / 10
            tensors |= {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
    folder.mkdir()
    save_file(tensors, folder / FILE)
    text = json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 16, "bias": "none", **config})
    (folder / "adapter_config.json").write_text(text)
    return folder


def adapted(model: nn.Module, folder: Path, scale: float) -> Any:
    """A copy of the model whose linear layers add their update, by the formula of LoRA."""
    model = copy.deepcopy(model)
    tensors = load_weights(folder / FILE)
    for key, down in tensors.items():
        if key.endswith(".lora_A.weight"):
            up = tensors[key.replace("lora_A", "lora_B")]
            module = model.get_submodule(key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
            module.register_forward_hook(
                lambda _, args, out, down=down, up=up: out + args[0] @ down.T @ up.T * scale  # type: ignore[misc]
            )
    return model


def greedy(model: Any, ids: Tensor, count: int, **options: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.generate(
            input_ids=ids, max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None, **options
        )
    return found[:, ids.shape[1] :]


@pytest.mark.parametrize(
    ("config", "scale"), [({}, 4.0), ({"use_rslora": True}, 8.0), ({"alpha_pattern": {"q_proj": 16}}, 4.0)]
)
def test_merged(model: Any, graph: IR, tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    """Tokens and logits are those of the adapted model, from the file and optimised; no weight is read for it."""
    folder = write_adapter(model, tmp_path / "adapter", ("q_proj", "down_proj", "lm_head"), 4, **config)
    merged = IR.from_json(merge_lora(graph, folder).to_json())
    weights = {**model.state_dict(), **load_weights(folder / FILE)}
    ids, expected = torch.randint(99, (2, 5)), adapted(model, folder, scale)
    assert torch.equal(generate(merged, weights, 6, input_ids=ids), greedy(expected, ids, 6))
    assert not torch.equal(generate(merged, weights, 6, input_ids=ids), greedy(model, ids, 6))
    with torch.no_grad():
        logits = expected(input_ids=ids).logits[:, -1:]
    for each in (merged, optimize(merged, "full")[0]):
        assert torch.allclose(IRExecutor(each, weights)(input_ids=ids)["logits"], logits, atol=1e-4)


def test_one_for_each_row(model: Any, graph: IR, tmp_path: Path) -> None:
    """Rows of a batch use adapters of different ranks and modules, or none; both graphs take them as inputs."""
    folders = [
        write_adapter(model, tmp_path / "first", ("q_proj", "v_proj"), 4),
        write_adapter(model, tmp_path / "second", ("q_proj", "up_proj", "lm_head"), 2),
    ]
    ir = IR.from_json(lora_as_inputs(graph, folders).to_json())
    ids = torch.randint(99, (3, 5))
    rows = torch.tensor([2, 0, 1])
    found = generate(ir, model.state_dict(), 6, input_ids=ids, lora=lora_inputs(folders), adapter=rows)  # type: ignore[arg-type]
    models = [adapted(model, folders[1], 8.0), model, adapted(model, folders[0], 4.0)]
    assert torch.equal(found, torch.cat([greedy(each, row[None], 6) for each, row in zip(models, ids, strict=True)]))


@pytest.mark.filterwarnings("ignore")  # of PEFT
def test_equal_to_peft(model: Any, graph: IR, tmp_path: Path) -> None:
    """Against PEFT itself: DoRA, embeddings, all linear layers, Conv1D, and adapters that differ in a batch."""
    peft = pytest.importorskip("peft", reason="peft is not installed; no extra of torch-ir brings it")

    def make(base: Any, name: str, **options: Any) -> Any:
        torch.manual_seed(1)
        found = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(r=4, **options)).eval()
        for key, value in found.named_parameters():
            if "lora_" in key:
                value.data.mul_(1.1) if "magnitude" in key else value.data.normal_(0, 0.1)
        found.save_pretrained(tmp_path / name)
        return found

    conv = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=99, initializer_range=0.2)).eval()
    ids = torch.randint(99, (2, 5))
    for number, (base, ir, options) in enumerate(
        [
            (model, graph, {"target_modules": "all-linear", "use_rslora": True}),
            (model, graph, {"target_modules": ["q_proj"], "use_dora": True}),
            (model, graph, {"target_modules": ["embed_tokens", "lm_head"], "rank_pattern": {"lm_head": 2}}),
            (model, graph, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
            (conv, extract_llm(conv.config), {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
        ]
    ):
        expected = make(base, str(number), **options)
        weights = {**base.state_dict(), **load_weights(tmp_path / str(number) / FILE)}
        logits = IRExecutor(merge_lora(ir, tmp_path / str(number)), weights)(input_ids=ids)["logits"]
        with torch.no_grad():
            assert torch.allclose(logits, expected(input_ids=ids).logits[:, -1:], atol=1e-4)
    make(model, "second", target_modules=["v_proj"])
    folders = [tmp_path / "0", tmp_path / "second"]
    mixed = peft.PeftModel.from_pretrained(copy.deepcopy(model), folders[0], adapter_name="a").eval()
    mixed.load_adapter(folders[1], adapter_name="b")
    found = generate(
        lora_as_inputs(graph, folders),
        model.state_dict(),
        6,
        input_ids=ids,
        lora=lora_inputs(folders),  # type: ignore[arg-type]
        adapter=torch.tensor([2, 1]),
    )
    assert torch.equal(found, greedy(mixed, ids, 6, adapter_names=["b", "a"]))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3' is not supported"),
        ({"bias": "all"}, "bias='all' is not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights='pissa_niter_4' is not supported"),
        ({"lora_alpha": "x"}, "lora_alpha is a number, not 'x'"),
        ({"alpha_pattern": {"(a+)+b": 2}}, "is a regular expression, which is not supported"),
        ({"alpha_pattern": [1]}, "alpha_pattern is not an object"),
    ],
)
def test_refused(model: Any, graph: IR, tmp_path: Path, config: dict[str, Any], message: str) -> None:
    folder = write_adapter(model, tmp_path / "adapter", ("q_proj",), 4, **config)
    with pytest.raises(WeightLoadError) as caught:
        merge_lora(graph, folder)
    assert message in str(caught.value)


def test_adapter_of_another_model(model: Any, graph: IR, tmp_path: Path) -> None:
    folder = write_adapter(nn.Sequential(nn.Linear(8, 8)), tmp_path / "adapter", ("0",), 4)
    with pytest.raises(WeightLoadError, match="adapts '0', which is not a linear layer or embedding of this graph"):
        merge_lora(graph, folder)
    wide = LlamaForCausalLM(LlamaConfig(**{**CONFIG.to_dict(), "intermediate_size": 64}))
    folder = write_adapter(wide, tmp_path / "wide", ("up_proj",), 4)
    with pytest.raises(WeightLoadError, match=r"has the shape \[48, 32\], but its adapter \[64, 32\]"):
        merge_lora(graph, folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightLoadError, match="is not a PEFT adapter"):
        merge_lora(graph, tmp_path / "empty")


def test_factors_that_do_not_fit(model: Any, graph: IR, tmp_path: Path) -> None:
    folder = write_adapter(model, tmp_path / "adapter", ("q_proj",), 4)
    tensors = load_weights(folder / FILE)
    key = next(iter(tensors))
    for change, message in (
        ({key: None}, "has only one of the two factors"),
        ({key: torch.zeros(3, 32)}, "have the ranks 3 and 4"),
        ({"x.lora_A.weight": torch.zeros(4, 4)}, "'x.lora_A.weight' is not a tensor of a LoRA adapter"),
    ):
        changed = {name: value for name, value in {**tensors, **change}.items() if value is not None}
        save_file(changed, folder / FILE)
        with pytest.raises(WeightLoadError, match=message):
            merge_lora(graph, folder)


# -- the command line -------------------------------------------------------------------------------------------------


def test_command_line(model: Any, graph: IR, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`llm` adapts a model that it captures, and a file that it wrote; the tokens are those of the adapted model."""
    folder = write_adapter(model, tmp_path / "adapter", ("q_proj", "lm_head"), 4)
    model.config.save_pretrained(tmp_path / "model")
    plain, merged, again, rows = (str(tmp_path / f"{name}.json") for name in ("plain", "merged", "again", "rows"))
    graph.save(plain)
    assert main(["llm", str(tmp_path / "model"), "-o", merged, "--lora", str(folder)]) == 0
    assert main(["llm", plain, "-o", again, "--lora", str(folder)]) == 0
    assert main(["llm", plain, "-o", rows, "--lora-input", str(folder), "--lora-input", str(folder)]) == 0
    capsys.readouterr()
    weights = {**model.state_dict(), **load_weights(folder / FILE)}
    ids, expected = torch.randint(99, (2, 5)), adapted(model, folder, 4.0)
    for path in (merged, again):
        assert torch.equal(generate(IR.load(path), weights, 4, input_ids=ids), greedy(expected, ids, 4))
    assert [tensor.name for tensor in IR.load(rows).graph_inputs][-1] == "adapter"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "out.json", "--verify", "2"], "--verify compares with the model alone; leave it out, or"),
        ([], "a rewritten graph is written to -o FILE; add it, or"),
        (["-o", "out.json"], "adapter_config.json"),
    ],
)
def test_command_mistakes(
    graph: IR, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """One line, status 1, and no file."""
    path = tmp_path / "plain.json"
    graph.save(path)
    options = [str(tmp_path / each) if each.endswith("json") else each for each in options]
    assert main(["llm", str(path), "--lora", str(tmp_path / "missing"), *options]) == 1
    assert message in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["plain.json"]
