"""The nodes of usual models as cases, each alone: operators in combinations of dtypes that the database lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import transformers

import catalogue
from tests.backend_sweep.cases import Case, made_case
from tests.proof import captured_entry
from torch_ir import IR, extract_ir, optimize, to_torch
from torch_ir.backends.swept import dtypes_of
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.passes.probe_inputs import drawn_inputs
from torch_ir.passes.random_check import retyped

FLOATS = ("float32", "float16", "bfloat16")
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
}


def node_cases() -> Iterator[Case]:
    """One case for each operator and combination of dtypes."""
    tried = set()
    for ir in usual_graphs():
        for node in with_calls_inline(ir).nodes:
            kind = (node.op_type, dtypes_of(node))
            plain = bool(node.outputs) and not node.op_type.startswith("higher_order.")
            if plain and kind not in tried and all(tensor.is_static for tensor in node.inputs):
                case = _case(node)
                if case is not None:  # otherwise one of other sizes may do
                    tried.add(kind)
                    yield case


def usual_graphs() -> Iterator[IR]:
    """Yield the models of the catalogue, a BERT and a Llama, as captured and optimised, in three dtypes."""
    for dtype in FLOATS:
        for entry in catalogue.entries():
            captured = retyped(captured_entry(entry.name), dtype)
            yield from (captured, optimize(captured, "full")[0])
        for config in (transformers.BertConfig(**SMALL), transformers.LlamaConfig(**SMALL, num_key_value_heads=2)):
            model = transformers.AutoModel.from_config(config).to(getattr(torch, dtype)).eval()
            ids = torch.arange(24).reshape(2, 12)
            given = {"attention_mask": torch.ones_like(ids), "use_cache": False}
            captured = extract_ir(model, (ids,), kwargs=given, strict=False)
            yield from (captured, optimize(captured, "full")[0])


def _case(node: OpNode) -> Case | None:
    copies: dict[TensorMeta, TensorMeta] = {}

    def copied(tensor: TensorMeta) -> TensorMeta:
        return copies.setdefault(tensor, TensorMeta(tensor.name, tensor.shape, tensor.dtype))

    copy = node.copy(copied)
    ir = IR([copy], list(dict.fromkeys(copy.inputs)), copy.outputs)
    dtype = next((name for name in FLOATS if name in dtypes_of(node)), node.outputs[0].dtype)
    whole = (torch.int64, torch.int32)
    tensors = [value % 2 if value.dtype in whole else value for value in drawn_inputs(ir, {})]  # valid as indices
    return made_case(f"{node.op_type} {dtypes_of(node)}", node.op_type, dtype, to_torch(ir), tensors, ir=ir)
