"""Turn what a processor returns into the inputs of prefill: run the encoders, keep the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, Branch
from torch_ir.llm.joined_entries import ENCODE, MODALITIES, PROJECT, entry_graphs
from torch_ir.run import IRExecutor
from torch_ir.run.weight_files import weights_read


class Encoders:
    """The encoders of a file, bound to weights."""

    def __init__(self, ir: IR, weights: Mapping[str, Tensor]) -> None:
        graphs = entry_graphs(ir)
        self._known = _arguments(ir)
        self._inputs: dict[str, list[str]] = {}
        self._runs: dict[str, list[IRExecutor]] = {}
        for modality in MODALITIES:
            parts = [graphs[name] for name in (ENCODE + modality, PROJECT + modality) if name in graphs]
            if parts:
                self._inputs[modality] = _arguments(parts[0])
                self._runs[modality] = [IRExecutor(part, weights_read(part, weights)) for part in parts]

    def prefill_inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the inputs of prefill; raise ExecutionError for those that are missing, or have no effect."""
        left = dict(inputs)
        mask = left.get("attention_mask")
        if self._runs and mask is not None and "attention_mask" not in self._known:
            if not bool(mask.bool().all()):
                raise ExecutionError("these graphs take no padded prompts; extract the model with padding=True")
            del left["attention_mask"]
        found: dict[str, Any] = {}
        used: set[str] = set()
        for modality, names in self._inputs.items():
            lacking = [name for name in names if name not in inputs]
            if lacking:
                raise ExecutionError(f"the {modality} encoder also needs {', '.join(lacking)}")
            value: Any = {name: inputs[name] for name in names}
            for at, run in enumerate(self._runs[modality]):
                value = run(**(value if at == 0 else {modality: value}))
            found[modality] = value
            used.update(names)
        return {name: value for name, value in left.items() if name in self._known or name not in used} | found


def _arguments(ir: IR) -> list[str]:
    keywords = ir.input_tree.items[1]
    return [str(key) for key in keywords.keys] if isinstance(keywords, Branch) else []
