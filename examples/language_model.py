"""Statistics of a language model from its graph, without allocating, loading or downloading weights.

python examples/language_model.py [--layers 32] [--tokens 128] [--output FILE]
"""

import argparse
import math
from collections import Counter

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import torch_ir


def llama_8b(layers: int) -> LlamaForCausalLM:
    """Build a model with the sizes of Llama 3 8B, which has 32 layers, on meta."""
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0, use_cache=False,
        dtype=torch.bfloat16,
    )  # fmt: skip
    with torch_ir.meta_init():
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def multiply_adds(node: torch_ir.OpNode) -> int:
    """Return the multiply-adds of a linear layer: elements of the weight times rows of the output."""
    rows = math.prod(node.output.shape[:-1])
    return rows * math.prod(node["weight"].shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--output", metavar="FILE", help="save the graph")
    options = parser.parse_args()

    ids = torch.empty(1, options.tokens, dtype=torch.int64, device="meta")
    ir = torch_ir.extract_ir(llama_8b(options.layers), (ids,))
    if options.output:
        ir.save(options.output)

    parameters = sum(math.prod(tensor.shape) for tensor in ir.params if tensor.param.in_state_dict)
    linears = [node for node in ir.nodes if node.op_type == "aten.linear.default"]
    print(repr(ir))
    print(f"parameters:     {parameters:,} ({2 * parameters / 1e9:.1f} GB in bfloat16, none of it in memory)")
    print(f"linear layers:  {len(linears)}, {sum(map(multiply_adds, linears)) / 1e9:.1f} G multiply-adds")
    print("largest weights:")
    for tensor in sorted(ir.params, key=lambda tensor: -math.prod(tensor.shape))[:3]:
        print(f"  {tensor.key:<40} {tensor.dtype}{list(tensor.shape)}")
    print("operators:")
    for op_type, count in Counter(node.op_type for node in ir.nodes).most_common(6):
        print(f"  {count:>4}  {op_type}")
    layer = Counter(node.op_type for node in ir.nodes if node.origin.module.startswith("model.layers.0."))
    print(f"nodes of one layer: {layer.total()}, {layer['aten.linear.default']} of them linear")


if __name__ == "__main__":
    main()
