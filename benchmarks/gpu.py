"""Speed of the Inductor back end on a GPU, against eager and torch.compile of the original.

python -m benchmarks.gpu [--device cpu] [--small] [--models NAME ...] [--dtypes NAME ...] [--no-autotune] [--json FILE]

Weights are random, and all contestants have the same. In every round each has its turn. The file is written after
every model, so that a run that is cut short leaves what it measured. It needs torch and nothing else.
"""

import argparse
import copy
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
from benchmarks.measure import digits, table
from torch_ir.backends import compile as compile_graph

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
LEAST = 0.02  # minimum seconds of a turn
Action = Callable[[], Any]


class Layer(nn.Module):
    """One layer of BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.output(mixed))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    """The encoder of BERT, at the sizes of BERT-base."""

    def __init__(self, width: int = 768, heads: int = 12, layers: int = 12, words: int = 30522) -> None:
        super().__init__()
        self.words, self.places, self.types = (nn.Embedding(count, width) for count in (words, 512, 2))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + self.places(places) + self.types(torch.zeros_like(ids))
        return self.layers(self.norm(x))


def resnet(small: bool) -> nn.Module:
    from catalogue.resnet18 import resnet18
    from catalogue.resnet50 import resnet50

    return resnet18() if small else resnet50()


def bert(small: bool) -> nn.Module:
    return Bert(64, 4, 2, 1000) if small else Bert()


@dataclass(frozen=True)
class Case:
    """A model and a batch size."""

    name: str
    build: Callable[[bool], nn.Module]
    sample: Callable[[int, bool], Tensor]
    batches: tuple[int, ...]


def image(batch: int, small: bool) -> Tensor:
    side = 64 if small else 224
    return torch.randn(batch, 3, side, side)


def words(batch: int, small: bool) -> Tensor:
    return torch.randint(0, 1000, (batch, 16 if small else 128))


CASES = {"resnet50": Case("ResNet-50", resnet, image, (1, 32, 128)), "bert": Case("BERT-base", bert, words, (1, 32))}


def main() -> None:
    options = _options()
    warnings.simplefilter("ignore")
    found: list[dict[str, Any]] = []
    for case, dtype, batch in _chosen(options):
        found.append(measured(case, dtype, batch, options))
        print(json.dumps(found[-1]), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps({"machine": _machine(options.device), "cases": found}, indent=1))
    print(f"\n{_table(found)}\n\nMeasured on {_machine(options.device)}.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--batches", nargs="+", type=int, help="only these batch sizes")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bfloat16", "float16"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--no-autotune", action="store_true", help="skip kernel tuning, which takes minutes")
    parser.add_argument("--small", action="store_true", help="small models, as a smoke test")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> Iterator[tuple[Case, str, int]]:
    for name in options.models:
        for dtype in options.dtypes:
            for batch in (2,) if options.small else CASES[name].batches:
                if not options.batches or batch in options.batches:
                    yield CASES[name], dtype, batch


def measured(case: Case, dtype: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return, for each contestant, seconds per call, difference from eager, and compile time."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = case.build(options.small).eval().to(DTYPES[dtype])
    sample = case.sample(batch, options.small)
    sample = sample.to(DTYPES[dtype]) if sample.is_floating_point() else sample
    ir = torch_ir.extract_ir(model, (sample,), strict=False)
    weights = copy.deepcopy(model.state_dict())
    model, sample = model.to(options.device), sample.to(options.device)
    ways: dict[str, Callable[[], Callable[..., Any]]] = {
        "eager": lambda: model,
        "torch.compile": lambda: torch.compile(model),
        "torch.compile, CUDA graphs": lambda: torch.compile(model, mode="reduce-overhead"),
        "ours": lambda: compile_graph(ir, weights, device=options.device),
    }
    if not options.no_autotune:
        ways["torch.compile, max-autotune"] = lambda: torch.compile(model, mode="max-autotune")
        ways["ours, max-autotune"] = lambda: _tuned(ir, weights, options.device)
    results: dict[str, dict[str, Any]] = {}
    actions: dict[str, Action] = {}
    with torch.no_grad():
        expected = model(sample).float()
        for name, make in ways.items():
            start = time.perf_counter()
            try:
                actions[name] = partial(make(), sample)
                actual = actions[name]().float()
            except Exception as error:  # any compiler error; the others are still measured
                actions.pop(name, None)
                results[name] = {"wrong": str(error).strip().partition("\n")[0]}
                continue
            off = float((actual - expected).abs().max() / expected.abs().max())
            results[name] = {"prepared": time.perf_counter() - start, "off": off}
        for name, seconds in _race(actions, options.rounds, options.device).items():
            results[name]["seconds"] = seconds
    return {"model": case.name, "dtype": dtype, "batch": batch, "results": results}


def _tuned(ir: torch_ir.IR, weights: dict[str, Tensor], device: str) -> Callable[..., Any]:
    with torch._inductor.config.patch(max_autotune=True):
        return compile_graph(ir, weights, device=device)


def _race(actions: dict[str, Action], rounds: int, device: str) -> dict[str, list[float]]:
    calls = {}
    for name, action in actions.items():
        for _ in range(3):
            action()
        calls[name] = max(1, round(LEAST / _turn(action, 3, device)))
    names = list(actions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            seconds[name].append(_turn(actions[name], calls[name], device))
    return seconds


def _turn(action: Action, calls: int, device: str) -> float:
    """Return the seconds per call, measured on the GPU if there is one."""
    if torch.device(device).type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            action()
        return (time.perf_counter() - began) / calls
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        action()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000 / calls


def _table(found: list[dict[str, Any]]) -> str:
    """Return the milliseconds of eager, and the speed of the others relative to it."""
    names = list(dict.fromkeys(name for entry in found for name in entry["results"]))
    rows = []
    for entry in found:
        results = entry["results"]
        base = statistics.median(results["eager"]["seconds"])
        cells = [entry["model"], entry["dtype"], entry["batch"], f"{base * 1000:.3f} ms"]
        rows.append(
            [*cells, *(_cell(results.get(name, {"wrong": "not measured"}), results["eager"]) for name in names[1:])]
        )
    return table(["model", "dtype", "batch", "eager", *names[1:]], rows)


def _cell(result: dict[str, Any], eager: dict[str, Any]) -> str:
    if "wrong" in result:
        return result["wrong"]
    ratios = [one / other for one, other in zip(eager["seconds"], result["seconds"], strict=True)]
    return f"{digits(statistics.median(ratios))} (off by {result['off']:.0e}, made in {result['prepared']:.0f} s)"


def _machine(device: str) -> str:
    name = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "the CPU"
    return f"{name}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
