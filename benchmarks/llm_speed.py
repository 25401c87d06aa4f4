"""Milliseconds a token of a Llama of 1.2 B parameters: `torch_ir.llm.compile` against torch.compile and transformers.

python -m benchmarks.llm_speed [--device cuda] [--dtype bfloat16] [--only NAME ...] [--layers 16] [--json FILE]

Weights are random, and all contestants have the same. Each generates greedily after the same prompt, with a static
cache, and takes its turn in every round. A round is timed from the end of prefill to the last token. With `--cpu-time`,
times are those of the process on one thread, which other processes on the machine disturb less. It needs torch and
transformers.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import torch_ir
import torch_ir.llm
from torch_ir.quantization import quantize

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
PEERS = [f"{peer}{kind}" for peer in ("openvino", "llama.cpp") for kind in ("", "-bfloat16", "-int8", "-int4")]
Tokens = Callable[[int], tuple[Tensor, float]]  # count -> tokens, seconds of all but the first


clock = time.perf_counter


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:  # of the model, for peers in other processes
        options.folder = folder
        measure(options)


def measure(options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    if options.cpu_time:
        global clock
        clock = time.process_time
        torch.set_num_threads(1)
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=options.layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=options.vocabulary,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype=DTYPES[options.dtype],
    )
    torch.manual_seed(0)
    with _default(DTYPES[options.dtype]), torch.device(options.device):
        model: Any = LlamaForCausalLM
        model = model(config).eval()
        prompt = torch.randint(0, options.vocabulary, (1, options.prompt))
    found: dict[str, Any] = {}
    racing: dict[str, Tokens] = {}
    for name in options.only or [name for name in CONTESTANTS if name not in PEERS]:
        start = time.perf_counter()
        try:
            racing[name] = CONTESTANTS[name](model, prompt, options)
            tokens, _ = racing[name](options.tokens)
        except Exception as error:  # any compiler error; the others are still measured
            racing.pop(name, None)
            found[name] = {"wrong": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
            print(name, found[name], flush=True)
            continue
        found[name] = {"prepared": time.perf_counter() - start, "tokens": tokens[0, :16].tolist(), "ms": []}
        print(name, f"{found[name]['prepared']:.0f} s", found[name]["tokens"], flush=True)
    for _ in range(options.rounds):
        for name, run in racing.items():
            found[name]["ms"].append(run(options.tokens)[1] / (options.tokens - 1) * 1000)
    for name, entry in found.items():
        if "ms" in entry:
            low, middle, high = statistics.quantiles(entry["ms"], n=4) if options.rounds > 1 else entry["ms"] * 3
            print(f"{name}: {middle:.3f} ms a token ({low:.3f}-{high:.3f}), {1000 / middle:.1f} tokens/s")
    if options.profile and "ours" in racing:
        print(_profile(racing["ours"]))
    if options.json:
        facts = {**vars(options), "torch": torch.__version__, "contestants": found}
        Path(options.json).write_text(json.dumps(facts, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.llm_speed", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--cache", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", default=[], metavar="PEER=PYTHON", help="see benchmarks/llm_peers.py")
    parser.add_argument("--cpu-time", action="store_true", help="time the process on one thread, not the clock")
    parser.add_argument("--profile", action="store_true", help="also list the kernels of our steps")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    return parser.parse_args()


# -- contestants ------------------------------------------------------------------------------------------------------


def eager(model: Any, prompt: Tensor, options: argparse.Namespace) -> Tokens:
    return _static(model, prompt, options, lambda step: step)


def reduce_overhead(model: Any, prompt: Tensor, options: argparse.Namespace) -> Tokens:
    return _static(model, prompt, options, lambda step: torch.compile(step, mode="reduce-overhead", fullgraph=True))


def max_autotune(model: Any, prompt: Tensor, options: argparse.Namespace) -> Tokens:
    return _static(model, prompt, options, lambda step: torch.compile(step, mode="max-autotune", fullgraph=True))


def coordinate_descent(model: Any, prompt: Tensor, options: argparse.Namespace) -> Tokens:
    settings: dict[str, Any] = {"triton.cudagraphs": True, "coordinate_descent_tuning": True}
    return _static(model, prompt, options, lambda step: torch.compile(step, options=settings, fullgraph=True))


def _static(model: Any, prompt: Tensor, options: argparse.Namespace, compiled: Callable[[Any], Any]) -> Tokens:
    """Decode with the model itself and its static cache, the choice of the token included."""
    cache: Any = StaticCache(config=model.config, max_cache_len=options.cache)

    def step(token: Tensor) -> Tensor:
        chosen: Tensor = model(input_ids=token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        return chosen

    fast = compiled(step)

    def run(count: int) -> tuple[Tensor, float]:
        with torch.no_grad():
            cache.reset()
            tokens = [step(prompt)]
            _finish(options)
            start = clock()
            for _ in range(count - 1):
                tokens.append(fast(tokens[-1]).clone())
            _finish(options)
            return torch.cat(tokens, dim=1).cpu(), clock() - start

    return run


def ours(model: Any, prompt: Tensor, options: argparse.Namespace) -> Tokens:
    return _compiled(model, prompt, options, lambda ir: ir)


def ours_int8(model: Any, prompt: Tensor, options: argparse.Namespace) -> Tokens:
    return _compiled(model, prompt, options, lambda ir: quantize(ir, "int8")[0])


def ours_int4(model: Any, prompt: Tensor, options: argparse.Namespace) -> Tokens:
    return _compiled(model, prompt, options, lambda ir: quantize(ir, "int4-g64")[0])


def ours_bfloat16(model: Any, prompt: Tensor, options: argparse.Namespace) -> Tokens:
    """With the weights rounded to bfloat16, beside a model in float32."""
    before = model.config.dtype
    model.config.dtype = torch.bfloat16
    ir = torch_ir.llm.extract_llm(model.config, batch=1, cache_length=options.cache)
    model.config.dtype = before
    return _generating(ir, {key: value.bfloat16() for key, value in model.state_dict().items()}, prompt, options)


def _compiled(model: Any, prompt: Tensor, options: argparse.Namespace, quantized: Callable[[Any], Any]) -> Tokens:
    ir = quantized(torch_ir.llm.extract_llm(model.config, batch=1, cache_length=options.cache))
    return _generating(ir, model.state_dict(), prompt, options)


def _generating(ir: Any, weights: dict[str, Tensor], prompt: Tensor, options: argparse.Namespace) -> Tokens:
    compiled = torch_ir.llm.compile(ir, weights, device=options.device)

    def run(count: int) -> tuple[Tensor, float]:
        tokens, marks = [], []
        for token in compiled.stream(prompt, count):
            tokens.append(token)
            marks.append(clock())
        return torch.stack(tokens, dim=1), marks[-1] - marks[0]

    return run


def _peer(name: str) -> Callable[[Any, Tensor, argparse.Namespace], Tokens]:
    """A contestant in a process of its own; `name` is that of the peer, then, after a dash, the kind of its weights."""

    def prepare(model: Any, prompt: Tensor, options: argparse.Namespace) -> Tokens:
        peer, _, kind = name.partition("-")
        pythons = dict(given.partition("=")[::2] for given in options.peers)
        if peer not in pythons:
            raise ValueError(f"say which Python has {peer}: --peers {peer}=PYTHON")
        folder = Path(options.folder)
        if not (folder / "config.json").exists():
            model.save_pretrained(folder)
        script = Path(__file__).with_name("llm_peers.py")
        process = subprocess.Popen(
            [pythons[peer], str(script), peer, kind or "float32", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

        def run(count: int) -> tuple[Tensor, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"prompt": prompt[0].tolist(), "count": count}) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or "null")
            if answer is None:
                raise RuntimeError(f"{name} ended with status {process.wait()}")
            return torch.tensor([answer["tokens"]]), answer["seconds"]

        return run

    return prepare


CONTESTANTS: dict[str, Callable[[Any, Tensor, argparse.Namespace], Tokens]] = {
    "eager": eager,
    "reduce-overhead": reduce_overhead,
    "max-autotune": max_autotune,
    "coordinate-descent": coordinate_descent,
    "ours": ours,
    "ours-bfloat16": ours_bfloat16,
    "ours-int8": ours_int8,
    "ours-int4": ours_int4,
    **{name: _peer(name) for name in PEERS},
}


def _finish(options: argparse.Namespace) -> None:
    if torch.device(options.device).type == "cuda":
        torch.cuda.synchronize()


def _profile(run: Tokens) -> str:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run(9)
    return str(seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=40, max_name_column_width=90))


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


if __name__ == "__main__":
    main()
