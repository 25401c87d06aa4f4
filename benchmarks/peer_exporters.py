"""Exporters of `transformers`, and mobius, on four models: what each returns, and how far its results are from eager's.

Each pair of a model and an exporter runs once, in a process of its own; the time is that of the call alone, cold. The
exporters are optional: one that is not installed has no row.

python -m benchmarks.peer_exporters
"""

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from benchmarks.measure import digits, table

PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "executorch", "openvino", "mobius-onnx")
Run = Callable[[dict[str, torch.Tensor]], Any]


@dataclass(frozen=True)
class Exported:
    """What an exporter returned: the number of nodes, and a function that runs it, where there is one."""

    nodes: int
    run: Run | None = None


def tiny_bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return BertModel(BertConfig(vocab_size=1000, **sizes))


def tiny_mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return MixtralForCausalLM(MixtralConfig(vocab_size=1000, num_key_value_heads=2, use_cache=False, **sizes))


def tiny_llama() -> nn.Module:
    from benchmarks.models import llama

    return llama(layers=2, hidden=64)


def llama_8b() -> nn.Module:
    from benchmarks.models import llama

    with torch.device("meta"):
        return llama(layers=32)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tiny BERT": tiny_bert,
    "tiny Llama": tiny_llama,
    "tiny Mixtral": tiny_mixtral,
    "Llama-8B, no weights": llama_8b,
}


def with_torch_ir(model: Any, inputs: dict[str, torch.Tensor]) -> Exported:
    import torch_ir

    ir = torch_ir.extract_ir(model, (), kwargs=inputs, strict=False)
    return Exported(len(ir.nodes), lambda given: torch_ir.IRExecutor(ir, model.state_dict())(**given))


def with_dynamo(model: Any, inputs: dict[str, torch.Tensor]) -> Exported:
    from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter

    program = DynamoExporter().export(model, inputs, config=DynamoConfig())
    return Exported(_calls(program), lambda given: program.module()(**given))


def with_onnx(model: Any, inputs: dict[str, torch.Tensor]) -> Exported:
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    has_weights = not any(weight.is_meta for weight in model.parameters())
    program = OnnxExporter().export(model, inputs, config=OnnxConfig(export_params=has_weights, optimize=has_weights))
    return Exported(len(program.model.graph), lambda given: program(**given)[0])


def with_executorch(model: Any, inputs: dict[str, torch.Tensor]) -> Exported:
    from transformers.exporters.exporter_executorch import ExecutorchConfig, ExecutorchExporter

    program = ExecutorchExporter().export(model, inputs, config=ExecutorchConfig())

    def run(given: dict[str, torch.Tensor]) -> torch.Tensor:
        from executorch.runtime import Runtime

        method = Runtime.get().load_program(program.buffer).load_method("forward")
        return method.execute(list(given.values()))[0]

    return Exported(_calls(program.exported_program()), run)


def with_openvino(model: Any, inputs: dict[str, torch.Tensor]) -> Exported:
    from transformers.exporters.exporter_openvino import OpenVINOConfig, OpenVINOExporter

    program = OpenVINOExporter().export(model, inputs, config=OpenVINOConfig())

    def run(given: dict[str, torch.Tensor]) -> torch.Tensor:
        import openvino

        compiled = openvino.compile_model(program, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return torch.from_numpy(compiled([tensor.numpy() for tensor in given.values()])[0])

    return Exported(len(program.get_ops()), run)


def with_mobius(model: Any, inputs: dict[str, torch.Tensor]) -> Exported:
    """Build the graph from the model's configuration, without weights; the graph is not run."""
    from mobius import build

    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        package = build(folder, load_weights=False)
    return Exported(sum(len(built.graph) for built in package.values()))


EXPORTERS: dict[str, tuple[str, Callable[[Any, dict[str, torch.Tensor]], Exported]]] = {
    "torch_ir": ("torch", with_torch_ir),
    "transformers: DynamoExporter": ("transformers", with_dynamo),
    "transformers: OnnxExporter": ("onnxscript", with_onnx),
    "transformers: ExecutorchExporter, XNNPACK": ("executorch", with_executorch),
    "transformers: OpenVINOExporter": ("openvino", with_openvino),
    "mobius": ("mobius", with_mobius),
}


def run() -> str:
    """Return a row for each model and exporter."""
    rows = [
        [model, name, *_alone(model, name)]
        for model in MODELS
        for name, (package, _) in EXPORTERS.items()
        if find_spec(package)
    ]
    return f"{table(['model', 'exporter', 'nodes', 'seconds', 'differs by'], rows)}\n\nWith {_versions()}."


def _versions() -> str:
    found = [name for name in PACKAGES if find_spec(name.removesuffix("-onnx").replace("-", "_"))]
    return ", ".join(f"{name} {version(name)}" for name in found)


def _alone(model: str, exporter: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peer_exporters", model, exporter]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return [f"failed: {last[:100]}", "", ""]
    return json.loads(done.stdout.splitlines()[-1])


def _one(model_name: str, exporter: str) -> list[str]:
    """Export, and compare the first output with eager's on other inputs than those of the export."""
    torch.manual_seed(0)
    model = MODELS[model_name]().eval()
    is_real = not any(weight.is_meta for weight in model.parameters())
    sample, other = ({"input_ids": torch.randint(0, 1000, (1, 16))} for _ in range(2))
    if not is_real:
        sample = {name: tensor.to("meta") for name, tensor in sample.items()}
    start = time.perf_counter()
    exported = EXPORTERS[exporter][1](model, sample)
    seconds = time.perf_counter() - start
    difference = "not run"
    if exported.run and is_real:
        with torch.no_grad():
            expected = next(iter(model(**other).values()))
            found = exported.run(other)
        found = found if isinstance(found, torch.Tensor) else next(iter(found.values()))
        difference = f"{(found - expected).abs().max().item():.1g}"
    return [str(exported.nodes), digits(seconds), difference]


def _calls(program: Any) -> int:
    return sum(node.op == "call_function" for node in program.graph.nodes)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) == 3:
        print(json.dumps(_one(*sys.argv[1:])))
    else:
        print(run())
