"""Language models: prefill and decode as graphs, with the KV cache as inputs and outputs."""

from torch_ir.llm.cache_layout import CacheTensor, cache_map
from torch_ir.llm.checkpoint_layout import checkpoint_weights, to_checkpoint_layout
from torch_ir.llm.extraction import extract_llm
from torch_ir.llm.generation import generate, verify_llm

__all__ = [
    "CacheTensor",
    "cache_map",
    "checkpoint_weights",
    "extract_llm",
    "generate",
    "to_checkpoint_layout",
    "verify_llm",
]
