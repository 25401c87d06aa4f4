"""A peer of `benchmarks.llm_speed` in a process of its own, because its packages want other versions of transformers.

PYTHON benchmarks/llm_peers.py PEER KIND FOLDER, where KIND is float32, bfloat16, int8 or int4 and FOLDER holds a Llama
of transformers. It reads lines of JSON, `{"prompt": [ids], "count": tokens}`, and answers each by one, `{"tokens":
[ids], "seconds": from the first token to the last}`. The process needs:

- openvino: `pip install torch==2.13.0 optimum-intel`
- llama.cpp: `pip install llama-cpp-python gguf safetensors torch==2.13.0`, which compiles llama.cpp
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

THREADS = len(os.sched_getaffinity(0))
Stream = Callable[[list[int], int], Iterable[int]]  # prompt, count -> greedy tokens, one at a time


def main() -> None:
    peer, kind, folder = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    stream = {"openvino": openvino, "llama.cpp": llama_cpp}[peer](kind, Path(folder))
    for line in sys.stdin:
        asked = json.loads(line)
        tokens, marks = [], []
        for token in stream(asked["prompt"], asked["count"]):
            tokens.append(token)
            marks.append(time.perf_counter())
        print(json.dumps({"tokens": tokens, "seconds": marks[-1] - marks[0]}), file=answers, flush=True)


def openvino(kind: str, folder: Path) -> Stream:
    """As Optimum converts and runs it: the cache is a state of the compiled model."""
    import torch
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    bits = {"int8": {"bits": 8}, "int4": {"bits": 4, "group_size": 64, "ratio": 1.0}}.get(kind)
    model = OVModelForCausalLM.from_pretrained(
        folder,
        export=True,
        load_in_8bit=False,
        quantization_config=OVWeightQuantizationConfig(**bits) if bits else None,
        ov_config={
            "INFERENCE_PRECISION_HINT": "bf16" if kind == "bfloat16" else "f32",
            "INFERENCE_NUM_THREADS": THREADS,
        },
    )

    def stream(prompt: list[int], count: int) -> Iterator[int]:
        ids = torch.tensor([prompt])
        state = None
        for length in range(len(prompt), len(prompt) + count):
            mask = torch.ones(1, length, dtype=torch.int64)
            made = model(input_ids=ids, attention_mask=mask, past_key_values=state)
            state = made.past_key_values
            ids = made.logits[:, -1:].argmax(-1)
            yield int(ids)

    return stream


def llama_cpp(kind: str, folder: Path) -> Stream:
    """A file in the format of llama.cpp, written from the weights, and its own loop of evaluation."""
    import numpy
    from llama_cpp import Llama

    made = folder / f"{kind}.gguf"
    write_gguf(kind, folder, made)
    model = Llama(str(made), n_ctx=2048, n_threads=THREADS, n_threads_batch=THREADS, logits_all=False, verbose=False)

    def stream(prompt: list[int], count: int) -> Iterator[int]:
        model.reset()
        model.eval(prompt)
        for place in range(count):
            logits = model._ctx.get_logits_ith(-1)  # `scores` holds them only with logits of all places
            token = int(numpy.ctypeslib.as_array(logits, shape=(model.n_vocab(),)).argmax())
            yield token
            if place + 1 < count:
                model.eval([token])

    return stream


def write_gguf(kind: str, folder: Path, to: Path) -> None:
    import gguf
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config.get("rope_parameters") or config
    writer = gguf.GGUFWriter(str(to), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    packed = {"bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
    for part in sorted(folder.glob("*.safetensors")):
        for key, weight in load_file(part).items():
            values = weight.float()
            if ".q_proj." in key or ".k_proj." in key:
                values = _interleaved(values, heads if ".q_proj." in key else kv_heads)
            array: Any = values.numpy()
            name = names.get_name(key, try_suffixes=(".weight",))
            if kind == "float32" or values.dim() < 2:
                writer.add_tensor(name, array)
            else:
                form = gguf.GGMLQuantizationType[packed[kind]]
                writer.add_tensor(name, gguf.quants.quantize(array, form), raw_dtype=form)
            del weight, values, array
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(weight: Any, heads: int) -> Any:
    """The rows of each head in the order that llama.cpp's rotation expects: pairs beside each other, not halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns).contiguous()


if __name__ == "__main__":
    main()
