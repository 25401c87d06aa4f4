"""Language models: prefill and decode as graphs, with the KV cache as inputs and outputs."""

from torch_ir.llm.cache_layout import CacheTensor, cache_map
from torch_ir.llm.checkpoint_layout import checkpoint_weights, to_checkpoint_layout
from torch_ir.llm.compiled.language_model import CompiledLLM, compile
from torch_ir.llm.extraction import extract_llm
from torch_ir.llm.forms import CacheAttention, MaskKind, cache_attention, empty_cache, to_cache_form
from torch_ir.llm.generation import generate, verify_llm
from torch_ir.llm.image_positions import prompt_positions
from torch_ir.llm.in_place import cache_in_place
from torch_ir.llm.joined_entries import Edge, entry_map
from torch_ir.llm.lora import lora_as_inputs, lora_inputs, merge_lora

__all__ = [
    "CacheAttention",
    "CacheTensor",
    "CompiledLLM",
    "Edge",
    "MaskKind",
    "cache_attention",
    "cache_in_place",
    "cache_map",
    "checkpoint_weights",
    "compile",
    "empty_cache",
    "entry_map",
    "extract_llm",
    "generate",
    "lora_as_inputs",
    "lora_inputs",
    "merge_lora",
    "prompt_positions",
    "to_cache_form",
    "to_checkpoint_layout",
    "verify_llm",
]
