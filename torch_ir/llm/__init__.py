"""Language models as compilers need them: prefill and decode as graphs, with the cache as inputs and outputs."""

from torch_ir.llm.cache_map import CacheTensor, cache_map
from torch_ir.llm.extract import extract_llm
from torch_ir.llm.generate import generate, verify_llm

__all__ = ["CacheTensor", "cache_map", "extract_llm", "generate", "verify_llm"]
