"""Every command on small files: its words, the files, and a run in a forked process with other streams or a signal."""

import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file

import torch_ir
from tests.damage.planning_files import DEVICE, PLAN
from torch_ir.cli.dispatch import main
from torch_ir.llm import extract_llm

NET = """\
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))

    def forward(self, x):
        return self.layers(x)
"""
TARGET = """\
from torch_ir import Target
npu = Target("npu")

@npu.lowers("aten.linear.default", "aten.relu.default")
def lower(node):
    print("lowering " + node.name + " " + "-" * 70_000)  # more than any buffer holds
    return {"kind": node.op_type}
"""
CONTRACT = """\
ops = ["aten.relu", "aten.linear"]
"""
COMMANDS = {
    name: words.split()
    for name, words in {
        "extract": "extract net.py:Net -i 1x8 -o extracted.json",
        "llm": "llm llm.json",
        "llm with an adapter": "llm llm.json --lora adapter -o merged.json",
        "llm in a form": "llm llm.json --form slots -o slots.json",
        "train-step": "train-step net.py:Net -i 2x8 --target 2x8 --loss mse_loss -o step.json",
        "info": "info net.json",
        "ops": "ops net.json --json",
        "draw": "draw net.json",
        "explore": "explore net.json -o page.html",
        "cost": "cost net.json",
        "cost on a device": "cost net.json --device device.json",
        "cost of an entry point": "cost llm.json --function decode",
        "memory": "memory net.json -o planned.json",
        "memory of a file": "memory kept.json --check",
        "diff": "diff net.json net.json",
        "check": "check net.json",
        "optimize": "optimize net.json -o better.json --explain linear",
        "quantize": "quantize net.json --recipe int8",
        "sensitivity": "sensitivity net.json --weights random",
        "passes": "passes",
        "run": "run net.json -w random -o results.pt",
        "weights": "weights check net.json net.pt",
        "verify": "verify net.json net.py:Net",
        "golden": "golden net.json -w random -o new_pack",
        "compare": "compare pack pack/values-00001.safetensors",
        "bench": "bench net.json --repeat 1",
        "convert": "convert net.json -o net.pb --json",
        "convert to traces": "convert net.json --to chakra -o traces --device device.json",
        "lower": "lower net.json --target target.py:npu --log -o lowered.json",
        "coverage": "coverage net.json --target npu.toml --no-decompose",
        "plan": "plan net.json --devices 2 --memory 1GB -o found.json",
        "shard": "shard net.json --mesh tp=2 --plan plan.json -o rank.json",
        "shard by a plan": "shard net.json --plan mesh.json -o shard.json",
        "split": "split net.json --stages 2 -o pipeline.json",
        "split by a plan": "split net.json --plan mesh.json -o stages.json",
        "sweep": "sweep models.txt -o swept --steps extract",
        "doctor": "doctor python",
        "calibrate": "calibrate --minutes 0.001 --no-compiler -o measured.json",
        "completion": "completion bash",
    }.items()
}
# Those that compute for seconds, or start processes.
SLOW = (
    "extract", "llm with an adapter", "llm in a form", "train-step", "sensitivity", "verify", "golden", "bench",
    "sweep", "doctor", "calibrate",
)  # fmt: skip


def prepare(folder: Path) -> None:
    """Write a model, its graph, and the files that commands read."""
    mesh = {**PLAN, "axes": [{"axis": "tp", "ranks": 2, "rows": {"layers.0.0": "colwise"}}], "stages": ["layers.1"]}
    texts = {
        "net.py": NET, "target.py": TARGET, "npu.toml": CONTRACT, "plan.json": '{"layers.0.0": "colwise"}',
        "models.txt": "net.py:Net -i 1x8\n", "device.json": json.dumps(DEVICE), "mesh.json": json.dumps(mesh),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    before, path = os.getcwd(), list(sys.path)
    os.chdir(folder)
    try:
        assert main(["extract", "net.py:Net", "-i", "1x8", "-o", "net.json"]) == 0
        assert main(["golden", "net.json", "-w", "random", "-o", "pack"]) == 0
        assert main(["memory", "net.json", "-o", "kept.json"]) == 0
        torch.save(torch_ir.random_weights(torch_ir.IR.load("net.json")), "net.pt")
        extract_llm(_tiny_llama()).save("llm.json")
        write_adapter(Path("adapter"))
    finally:
        os.chdir(before)
        sys.path[:] = path
        sys.modules.pop("net", None)


def _tiny_llama() -> object:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=50,
        max_position_embeddings=32,
    )  # fmt: skip


def write_adapter(folder: Path) -> None:
    """Write an adapter of a Llama model whose layers have 16 features."""
    folder.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {f"{name}.lora_A.weight": torch.ones(2, 16), f"{name}.lora_B.weight": torch.ones(16, 2)}
    save_file(factors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')


def output_of(name: str, folder: Path) -> Path | None:
    """Return the file or folder that a command writes."""
    words = COMMANDS[name]
    return folder / words[words.index("-o") + 1] if "-o" in words else None


class Ended(NamedTuple):
    """The status of a command, negative for a signal that ended it; its stderr; files left in the temporary folder."""

    status: int
    stderr: str
    left: list[str]


def forked(name: str, folder: Path, change: Callable[[], object]) -> Ended:
    """Run a command in a forked process after `change`, which may replace its stdout or send it a signal."""
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryFile() as stderr:
        pid = os.fork()
        if pid == 0:
            _run(COMMANDS[name], folder, temporary, stderr.fileno(), change)
        _, status = os.waitpid(pid, 0)
        stderr.seek(0)
        left = sorted(path.name for path in Path(temporary).iterdir())
        return Ended(os.waitstatus_to_exitcode(status), stderr.read().decode(), left)


def _run(words: list[str], folder: Path, temporary: str, stderr: int, change: Callable[[], object]) -> None:
    """Become a program that runs one command, and exit with its status."""
    status: int | str | None = 1
    try:
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        os.dup2(stderr, 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        change()
        status = main(words)
        sys.stderr.flush()
    except SystemExit as error:
        status = error.code
    except KeyboardInterrupt:  # before the command began, or after its end
        status = 130
    finally:
        os._exit(status if isinstance(status, int) else 1)


def close_stdout() -> None:
    """As `>&-` does."""
    os.close(1)
    sys.stdout = None  # type: ignore[assignment]  # as Python starts then


def fill_disk() -> None:
    """Let stdout be a file on a full disk."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)


def limit_files() -> None:
    """Let no file have more than 300 bytes, as if the disk were full; an error fits."""
    sys.dont_write_bytecode = True  # Python would keep the first 300 bytes of a module
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def signal_after(seconds: float, number: signal.Signals) -> None:
    """Send this process a signal after some time."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), number))
    signal.setitimer(signal.ITIMER_REAL, seconds)
