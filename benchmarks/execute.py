"""What executing the graph costs over running the model, on a model of large kernels and on one of small ones."""

import torch

import torch_ir
from benchmarks.measure import milliseconds, race, ratios, table
from benchmarks.models import EXECUTED, Case


def run(repeats: int = 25) -> str:
    """Eager, torch's exported module and our executor on the same weights and inputs."""
    header = ["model", "nodes", "eager", "torch.export module / eager (range)", "IRExecutor / eager (range)"]
    return table(header, [_row(case, repeats) for case in EXECUTED])


def _row(case: Case, repeats: int) -> list[str]:
    torch.manual_seed(0)
    model, inputs = case.build().eval(), case.inputs()
    ir = torch_ir.extract_ir(model, (), kwargs=inputs, strict=False)
    executor = torch_ir.IRExecutor(ir, model.state_dict())
    with torch.no_grad():
        program = torch.export.export(model, (), inputs, strict=False).module()
        contestants = {
            "eager": lambda: model(**inputs),
            "torch": lambda: program(**inputs),
            "ours": lambda: executor(**inputs),
        }
        times = {name: samples.wall for name, samples in race(contestants, repeats, case.calls).items()}
    against_eager = [ratios(times[name], times["eager"]) for name in ("torch", "ours")]
    return [case.name, str(len(ir.nodes)), milliseconds(times["eager"]), *against_eager]
