"""Every command on every kind of graph, as captured and optimised: a result, or an error of one line."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import catalogue
from tests.adversarial.other_files import write_other_files
from tests.adversarial.verbs import VERBS, run_verb, write_target
from tests.proof import captured, captured_entry, module
from torch_ir import IR, CaptureWarning, extract_training, optimize, shard
from torch_ir.llm import extract_llm
from torch_ir.quantization import quantize

_TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip


def _language_model(kind: str, layout: str = "model", **config: Any) -> IR:
    from transformers import AutoConfig

    return extract_llm(AutoConfig.for_model(kind, **_TINY, **config), weight_layout=layout)


def _training() -> IR:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to("meta")
    inputs, targets = torch.empty(2, 4, device="meta"), torch.empty(2, dtype=torch.int64, device="meta")
    optimizer = torch.optim.AdamW(model.parameters())
    return extract_training(model, (inputs,), loss=nn.functional.cross_entropy, targets=(targets,), optimizer=optimizer)


def _mlp() -> IR:
    return captured_entry("mlp")


KINDS: dict[str, Callable[[], IR]] = {
    "language model": lambda: _language_model("llama"),
    "stacked experts": lambda: _language_model("mixtral", "checkpoint", num_local_experts=4),
    "training step": _training,
    "sizes of data": lambda: captured(module(lambda self, x: (x[x > 0].sum(), torch.nonzero(x))), torch.randn(3, 4)),
    "rank": lambda: shard(_mlp(), {"*": "colwise"}, {"tp": 2}),
    "quantised": lambda: quantize(_mlp(), "int8")[0],
    "blocks": lambda: captured_entry("gpt").fold_blocks(),
    "layers": lambda: captured_entry("bert").at_level("module"),
    **{entry.name: lambda name=entry.name: captured_entry(name) for entry in catalogue.entries()},
}

_SMALL = ("sizes of data", "rank", "quantised")  # a second for each


def _failures(ir: IR, folder: Path, capsys: pytest.CaptureFixture[str], verbs: list[str]) -> Iterator[str]:
    """Run commands on a graph; yield what raises, and errors that are not one line."""
    file, second = folder / "graph.json", folder / "second.json"
    ir.save(file)
    ir.save(second)
    write_target(folder)
    write_other_files(ir, file)
    for verb in verbs:
        try:
            status = run_verb(verb, file, second, folder)
        except Exception as error:
            yield f"{verb}: {type(error).__name__}: {error}"
            continue
        said = [line for line in capsys.readouterr().err.splitlines() if "error" in line or "Traceback" in line]
        if status not in (0, 1) or len(said) > status:
            yield f"{verb}: status {status}, {said}"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in _SMALL else pytest.mark.slow) for kind in KINDS]
)
def test_every_command(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        ir = KINDS[kind]()
    better = optimize(ir, "full")[0]
    found = []
    for name, graph in (("captured", ir), ("optimised", better)):
        folder = tmp_path / name
        folder.mkdir()
        found += [f"{name}, {failure}" for failure in _failures(graph, folder, capsys, list(VERBS))]
    assert not found, "\n".join(found)
