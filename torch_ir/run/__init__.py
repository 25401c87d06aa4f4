"""Running graphs: the executor and its weights."""

from torch_ir.run.benchmark import bench
from torch_ir.run.binding import bind
from torch_ir.run.executor import IRExecutor, Outcome, execute_ir
from torch_ir.run.stored import StoredTensor
from torch_ir.run.weight_files import (
    load_weights,
    load_weights_pt,
    load_weights_safetensors,
    open_weights,
    random_weights,
    validate_weights_against_ir,
)

__all__ = [
    "IRExecutor", "Outcome", "StoredTensor", "bench", "bind", "execute_ir", "load_weights", "load_weights_pt",
    "load_weights_safetensors", "open_weights", "random_weights", "validate_weights_against_ir",
]  # fmt: skip
