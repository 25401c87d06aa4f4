"""Errors of predicted times, on models that were not in the calibration.

python -m benchmarks.calibration [--device cpu|cuda] [--threads N] [--minutes N] [--file FILE] [--models NAME ...]
                                 [--modes NAME ...] [--set tuning|reported] [--json FILE]

The model of times was developed on the models of the set `tuning`; figures are reported on the set `reported`. Weights
are random. On a CPU with one thread, times are CPU times, so that other programs count little; otherwise they are wall
times of a call, on a GPU until its result is there. The fastest call counts; the ways take turns, and on a GPU the
models too: other programs slow its host down for seconds at a time.
"""

import argparse
import gc
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torch_ir
from benchmarks import models
from benchmarks.measure import digits, table
from torch_ir.analysis.devices.calibration import MODES, Calibration
from torch_ir.analysis.devices.device_file import load_device, save_device
from torch_ir.analysis.devices.run_modes import run_time
from torch_ir.backends import compile as compile_graph
from torch_ir.calibration import calibrate

LEAST = 0.02  # seconds of a turn
SLOW = 3.0  # seconds of a call of which fewer rounds are measured
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Inputs = Callable[[], dict[str, Any]]
Call = Callable[..., Any]
Key = tuple[str, str, str]  # a model, a dtype and a mode


@dataclass(frozen=True)
class Case:
    """A model with keyword inputs, on which the model of times was developed or is reported."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    is_tuning: bool = False


class OneToken(nn.Module):
    """A language model that reads one more token after a past."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        from transformers import DynamicCache

        past = DynamicCache()
        for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
            past.update(key, value, layer)
        logits: Tensor = self.model(input_ids=input_ids, past_key_values=past, use_cache=True).logits
        return logits


def _past(layers: int, heads: int, length: int, width: int, batch: int = 1) -> dict[str, Any]:
    def one() -> list[Tensor]:
        return [torch.randn(batch, heads, length, width) for _ in range(layers)]

    return {**models.tokens(batch, 1), "keys": one(), "values": one()}


def _image(batch: int = 1, name: str = "x", side: int = 224) -> Inputs:
    return lambda: {name: torch.randn(batch, 3, side, side)}


def _llama(hidden: int, layers: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = hidden // 64
    sizes = {"hidden_size": hidden, "intermediate_size": hidden * 11 // 4, "num_attention_heads": heads}
    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=layers, num_key_value_heads=heads // 2, vocab_size=32000, use_cache=False, **sizes
        )
    )


def _distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(DistilBertConfig())


def _t5() -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config())


def _opt() -> nn.Module:
    from transformers import OPTConfig, OPTForCausalLM

    return OPTForCausalLM(OPTConfig(use_cache=False))


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextModel

    return ConvNextModel(ConvNextConfig())


CASES = [
    Case("ResNet-18", models.resnet18, _image(), is_tuning=True),
    Case("DistilBERT, 64 tokens", _distilbert, lambda: models.tokens(length=64), is_tuning=True),
    Case("Llama 512 x 4, 64 tokens", lambda: _llama(512, 4), lambda: models.tokens(length=64), is_tuning=True),
    Case("ConvNeXt-tiny", _convnext, _image(name="pixel_values"), is_tuning=True),
    Case("ResNet-50", models.resnet50, _image()),
    Case("ResNet-50, batch 8", models.resnet50, _image(8)),
    Case("MobileNetV2", models.mobilenet_v2, _image()),
    Case("ViT-base", models.vit_base, _image(name="pixel_values")),
    Case("BERT-base, 128 tokens", models.bert_base, models.tokens),
    Case("GPT-2, 128 tokens", models.gpt2, models.tokens),
    Case("T5-small encoder, 128 tokens", _t5, models.tokens),
    Case("OPT-125M, 32 tokens", _opt, lambda: models.tokens(length=32)),
    Case("Whisper-base encoder", models.whisper_base_encoder, lambda: {"input_features": torch.randn(1, 80, 3000)}),
    Case("Llama 256 x 4, 16 tokens", lambda: _llama(256, 4), lambda: models.tokens(length=16)),
    Case("Llama 1024 x 8, 128 tokens", lambda: _llama(1024, 8), models.tokens),
    Case("Llama 1024 x 8, a token after 256", lambda: OneToken(_llama(1024, 8)), lambda: _past(8, 8, 256, 64)),
    Case("Llama 2048 x 8, a token after 1024", lambda: OneToken(_llama(2048, 8)), lambda: _past(8, 16, 1024, 64)),
    Case("EfficientNet-B0", models.efficientnet_b0, _image(name="pixel_values")),
]


def main() -> None:
    options = _options()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    dtypes = options.dtypes or ["bfloat16" if options.device == "cuda" else "float32"]
    device = _device(options, dtypes)
    chosen = [
        case
        for case in CASES
        if (not options.models or case.name in options.models)
        and options.set in ("all", "tuning" if case.is_tuning else "reported")
    ]
    pairs = [(case, dtype) for case in chosen for dtype in dtypes]
    found: list[dict[str, Any]] = []
    for together in [pairs] if options.device == "cuda" else [[pair] for pair in pairs]:
        prepared = [model for pair in together if (model := _prepared(*pair, options)) is not None]
        for row in errors(prepared, device, options):
            found.append(row)
            print(json.dumps(row), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps({"device": device.name, "rows": found}, indent=1))
    print(f"\n{text_of(found, options.modes)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--file", help="read this device file, or write it if there is none")
    parser.add_argument("--models", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="by default float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--set", choices=("tuning", "reported", "all"), default="reported")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    return parser.parse_args()


def _device(options: argparse.Namespace, dtypes: list[str]) -> Calibration:
    if options.file and Path(options.file).exists():
        return load_device(options.file)
    start = time.monotonic()
    found = calibrate(
        options.device,
        minutes=options.minutes,
        dtypes=dtypes,
        compiled=lambda ir, weights: compile_graph(ir, weights, verify=False, device=options.device),
    )
    print(f"calibrated {found.name} in {time.monotonic() - start:.0f} s", flush=True)
    if options.file:
        save_device(found, options.file)
    return found


@dataclass(frozen=True)
class Prepared:
    """A model in a dtype, ready to run: by mode, a call and the graph that it runs."""

    name: str
    dtype: str
    calls: dict[str, Call]
    graphs: dict[str, torch_ir.IR]


def _prepared(case: Case, dtype: str, options: argparse.Namespace) -> Prepared | None:
    try:
        return _prepare(case, dtype, options)
    except Exception as error:  # a package that is missing, or anything that a compiler raises
        print(f"{case.name}: {type(error).__name__}: {error}"[:300], flush=True)
        return None


def _prepare(case: Case, dtype: str, options: argparse.Namespace) -> Prepared:
    torch.manual_seed(0)
    gc.collect()
    model = case.build().eval().to(DTYPES[dtype])
    inputs = _moved(case.inputs(), DTYPES[dtype], "cpu")
    with torch.no_grad():
        ir = torch_ir.extract_ir(model, (), kwargs=inputs, strict=False)
    weights = dict(model.state_dict())
    placed, model = _moved(inputs, DTYPES[dtype], options.device), model.to(options.device)
    made: dict[str, Call] = {"eager": model}
    graphs = dict.fromkeys(MODES, ir)
    if "executor" in options.modes:
        made["executor"] = torch_ir.IRExecutor(ir, weights, device=options.device)
    if "compiled" in options.modes:
        compiled = compile_graph(ir, weights, verify=False, device=options.device)
        made["compiled"], graphs["compiled"] = compiled, compiled.graph
    calls = {mode: partial(made[mode], **placed) for mode in options.modes}
    with torch.no_grad():
        for call in calls.values():
            call()
    return Prepared(case.name, dtype, calls, graphs)


def errors(models: list[Prepared], device: Calibration, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the measured and the predicted time of each model in each mode."""
    with torch.no_grad():
        measured = _fastest(
            {(model.name, model.dtype, mode): call for model in models for mode, call in model.calls.items()}, options
        )
    for model in models:
        for mode in model.calls:
            seconds = measured[model.name, model.dtype, mode]
            predicted = run_time(model.graphs[mode], device, mode).seconds
            yield {
                "model": model.name,
                "dtype": model.dtype,
                "mode": mode,
                "measured": seconds,
                "predicted": predicted,
                "error": predicted / seconds - 1,
            }


def _moved(value: Any, dtype: torch.dtype, device: str) -> Any:
    if isinstance(value, dict):
        return {name: _moved(each, dtype, device) for name, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, dtype, device) for each in value]
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


def _fastest(ways: dict[Key, Call], options: argparse.Namespace) -> dict[Key, float]:
    is_cpu_time = options.device == "cpu" and options.threads == 1
    clock = time.process_time if is_cpu_time else time.perf_counter

    def timed(call: Call) -> float:
        start = clock()
        call()
        if options.device == "cuda":
            torch.cuda.synchronize()
        return clock() - start

    calls = {}
    for name, call in ways.items():
        call(), call()
        calls[name] = max(1, round(LEAST / max(timed(call), 1e-6)))
    taken: dict[Key, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, call in ways.items():
            if not taken[name] or min(taken[name]) < SLOW:
                taken[name] += [timed(call) for _ in range(calls[name])]
    return {name: min(each) for name, each in taken.items()}


def text_of(rows: list[dict[str, Any]], modes: list[str]) -> str:
    """Return the table by model, and for each mode the median and the 90th percentile of the errors' sizes."""
    names = dict.fromkeys((row["model"], row["dtype"]) for row in rows)
    cells = [
        [
            name,
            dtype,
            *(
                _cell([row for row in rows if (row["model"], row["dtype"], row["mode"]) == (name, dtype, mode)])
                for mode in modes
            ),
        ]
        for name, dtype in names
    ]
    lines = [table(["model", "dtype", *modes], cells), ""]
    for mode in [*modes, "all"]:
        sizes = sorted(abs(row["error"]) for row in rows if mode in ("all", row["mode"]))
        if sizes:
            tenth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
            lines.append(f"{mode}: median {statistics.median(sizes):.1%}, 90th percentile {tenth:.1%} of {len(sizes)}")
    return "\n".join(lines)


def _cell(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    measured, predicted = (digits(rows[0][key] * 1000) for key in ("measured", "predicted"))
    return f"{predicted} / {measured} ms ({rows[0]['error']:+.0%})"


if __name__ == "__main__":
    main()
