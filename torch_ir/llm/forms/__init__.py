"""Forms of a decode step: rewrites of recognised attention over a cache."""

from torch_ir.llm.forms.mask_kinds import MaskKind
from torch_ir.llm.forms.recognise_attention import CacheAttention, cache_attention
from torch_ir.llm.forms.step_graph import empty_cache, to_cache_form

__all__ = ["CacheAttention", "MaskKind", "cache_attention", "empty_cache", "to_cache_form"]
