"""Attention of one new token over a cache, as one operator with its own kernel on a GPU.

Torch's kernels for attention with a mask use one block of threads for each head, which leaves most of a GPU idle when
there is one query for each head. This one also divides the cache among blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from torch_ir.ir import IR, OpNode

_ATTENTION = "aten.scaled_dot_product_attention.default"
_OPERATOR = "torch_ir.decode_attention.default"
_NAMES = {"query": "query", "key": "key", "value": "value", "attn_mask": "mask"}
_DTYPES = ("bfloat16", "float16")
_WIDTHS = (16, 32, 64, 128, 256)  # of a head: a block of keys must fit the registers

_library: Any = torch.library.Library("torch_ir", "FRAGMENT")  # type: ignore[no-untyped-call]  # not annotated
_library.define("decode_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale) -> Tensor")


def _reference(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    is_grouped = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=is_grouped).contiguous()


def _on_gpu(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    from torch_ir.backends.gpu.decode_attention_kernel import launch

    return launch(query, key, value, mask, scale)


def _shape(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    return query.new_empty(*query.shape[:-1], value.shape[-1])


_library.impl("decode_attention", _reference, "CompositeExplicitAutograd")
_library.impl("decode_attention", _on_gpu, "CUDA")
_library.impl("decode_attention", _shape, "Meta")


def with_decode_attention(ir: IR) -> IR:
    """Return a copy in which attention of one query for each head is this operator."""
    copy = ir.clone()
    for node in copy.nodes:
        if _fits(node):
            scale = node.get("scale")
            node.op_type = _OPERATOR
            node.attrs = {"scale": node["query"].shape[-1] ** -0.5 if scale is None else scale}
            node.set_inputs(node.inputs, [_NAMES[name] for name in node.args])
            if "mask" not in node.args:
                node.attrs["mask"] = None
    return copy.check()


def _fits(node: OpNode) -> bool:
    """Whether the kernel takes this attention: one query, no causal order, and a bool mask that all heads share."""
    if node.op_type != _ATTENTION or node.get("is_causal") or node.get("dropout_p"):
        return False
    query, key, value, mask = (node.get(name) for name in _NAMES)
    tensors = [query, key, value, *([mask] if mask is not None else [])]
    if not all(tensor.is_static and len(tensor.shape) == 4 for tensor in tensors) or query.dtype not in _DTYPES:
        return False
    batch, heads, count, width = query.shape
    is_attention = count == 1 and key.shape == value.shape and key.shape[0] == batch and heads % key.shape[1] == 0
    is_shared = key.shape[1] != heads and not node.get("enable_gqa")  # by other rules than those of groups
    if not is_attention or is_shared or width not in _WIDTHS:
        return False
    if mask is None:
        return True
    sizes = (1, batch), (1,), (1,), (key.shape[2],)
    return mask.dtype == "bool" and all(map(lambda size, known: size in known, mask.shape, sizes))
