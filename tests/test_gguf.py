"""GGUF files: written by the gguf package, opened by header, bound to graphs of checkpoints."""

import struct
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from tests.architectures import architectures
from torch_ir import IRExecutor, WeightLoadError, extract_ir, load_weights, open_weights
from torch_ir.cli import main
from torch_ir.llm import extract_llm, generate
from torch_ir.run.gguf_file import GgufTensor
from torch_ir.run.stored import StoredTensor
from torch_ir.run.stored_piece import StoredPiece

SIZES = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
KINDS = gguf.GGMLQuantizationType
QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")  # the package can quantise to these
DECODED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ3_S", "IQ1_M", "TQ2_0")


def write(path: Path, architecture: str, tensors: dict[str, tuple[np.ndarray, Any]], **fields: int) -> Path:
    """Write a file with the package: each tensor with its format."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in fields.items():
        writer.add_uint32(f"{architecture}.{name.replace('__', '.')}", value)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "def"])
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rotated(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Order rows as llama.cpp's conversion does for Llama."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def file_of(model: Any, path: Path, architecture: str, formats: dict[str, str]) -> Path:
    """Write the weights of a model under the names of llama.cpp."""
    names = gguf.get_tensor_name_map(
        next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), 1
    )
    config = model.config
    tensors = {}
    for key, weight in model.state_dict().items():
        if architecture == "llama" and "q_proj" in key:
            weight = rotated(weight, config.num_attention_heads)
        if architecture == "llama" and "k_proj" in key:
            weight = rotated(weight, config.num_key_value_heads)
        if architecture == "gemma2" and "norm" in key:
            weight = weight + 1
        kind = KINDS[next((form for part, form in formats.items() if part in key), "F32")]
        data = weight.detach().float().numpy()
        data = data if kind == KINDS.F32 else gguf.quants.quantize(data, kind)
        tensors[names.get_name(key, try_suffixes=(".weight", ".bias"))] = (data, kind)
    fields = {
        "attention__head_count": config.num_attention_heads,
        "attention__head_count_kv": config.num_key_value_heads,
    }
    return write(path, architecture, tensors, block_count=1, **fields)


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def test_every_block_format(tmp_path: Path) -> None:
    """Each format becomes the numbers of the package's own reader and decoder; plain ones keep their dtype."""
    generator = np.random.default_rng(0)
    tensors: dict[str, tuple[np.ndarray, Any]] = {}
    for name in (*QUANTISED, "F32", "F16", "BF16"):
        data = generator.standard_normal((4, 256), dtype=np.float32)
        tensors[name] = gguf.quants.quantize(data, KINDS[name]), KINDS[name]
    for name in DECODED:
        _, size = gguf.GGML_QUANT_SIZES[KINDS[name]]
        blocks = 256 // gguf.GGML_QUANT_SIZES[KINDS[name]][0]
        data = generator.integers(0, 100, (4, blocks * size)).astype(np.uint8)  # small bytes: every scale is finite
        tensors[name] = data, KINDS[name]
    path = write(tmp_path / "formats.gguf", "llama", tensors)
    opened = open_weights(path)
    assert list(opened) == list(tensors)
    for each in gguf.GGUFReader(path).tensors:
        ours = opened[each.name].load()
        theirs = torch.from_numpy(gguf.quants.dequantize(np.array(each.data), each.tensor_type)).view(4, 256)
        assert torch.equal(ours.float(), theirs), each.name
        assert torch.isfinite(theirs).all(), each.name
        pieces = [opened[each.name].elements(start, start + 300) for start in (0, 100, 512, 724)]
        assert all(map(torch.equal, pieces, (ours.view(-1)[start : start + 300] for start in (0, 100, 512, 724))))
        assert opened[each.name].elements(5, 5).numel() == 0
    assert [opened[name].dtype for name in ("F16", "BF16", "Q2_K")] == [torch.float16, torch.bfloat16, torch.float32]


def test_a_piece_reads_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of each row is read row by row, and not the whole tensor for each."""
    data = np.random.default_rng(0).standard_normal((64, 256), dtype=np.float32)
    path = write(tmp_path / "one.gguf", "llama", {"w": (gguf.quants.quantize(data, KINDS.Q8_0), KINDS.Q8_0)})
    weight, sizes = open_weights(path)["w"], list[int]()
    whole = weight.load()
    read = StoredTensor.elements

    def elements(tensor: StoredTensor, start: int, stop: int) -> torch.Tensor:
        sizes.append(stop - start)
        return read(tensor, start, stop)

    monkeypatch.setattr(StoredTensor, "elements", elements)
    piece = StoredPiece.of(weight).cut(1, [(32, 64)])
    assert torch.equal(piece.load(), whole[:, 32:64])
    assert sum(sizes) == weight.size_in_file


@pytest.mark.parametrize("form", ["F32", "Q8_0"])
def test_a_llama_generates_from_a_file(llama: Any, tmp_path: Path, form: str) -> None:
    """Names and the order of rows are restored: tokens are those of the model with the file's numbers."""
    path = file_of(llama, tmp_path / "llama.gguf", "llama", {"proj": form})
    ir = extract_llm(llama)
    expected = transformers.LlamaForCausalLM(llama.config).eval()
    restored = {}
    for key, weight in llama.state_dict().items():
        if form != "F32" and "proj" in key:
            coded = gguf.quants.quantize(weight.numpy(), KINDS[form])  # blocks are within rows, so their order is free
            weight = torch.from_numpy(gguf.quants.dequantize(coded, KINDS[form])).view(weight.shape)
        restored[key] = weight
    expected.load_state_dict(restored)
    prompt = torch.randint(3, 50, (1, 5))
    theirs = expected.generate(input_ids=prompt, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(generate(ir, load_weights(path), 5, input_ids=prompt), theirs[:, 5:])
    ours = IRExecutor(ir, open_weights(path))(input_ids=prompt)["logits"]
    assert torch.equal(ours, IRExecutor(ir, restored)(input_ids=prompt)["logits"])


def test_dtypes_of_a_file_are_cast_in_the_graph(llama: Any, tmp_path: Path) -> None:
    """A graph for a file has its dtypes, and explicit casts to those of the model."""
    path = file_of(llama, tmp_path / "llama.gguf", "llama", {"proj": "F16", "embed": "BF16"})
    prompt = torch.randint(3, 50, (1, 5))
    with pytest.raises(WeightLoadError, match=r"q_proj\.weight' is float16, the graph needs float32"):
        IRExecutor(extract_llm(llama, batch=1, prompt=5, cache_length=8), load_weights(path))
    ir = extract_llm(llama, batch=1, prompt=5, cache_length=8, checkpoint=path)
    weights = load_weights(path)
    assert {param.dtype for param in ir.params if "proj" in str(param.key)} == {"float16"}
    ours = IRExecutor(ir, weights)(input_ids=prompt)["logits"]
    rounded = {
        key: each.to(torch.float16 if "proj" in key else torch.bfloat16 if "embed" in key else each.dtype).float()
        for key, each in llama.state_dict().items()
    }
    llama_again = transformers.LlamaForCausalLM(llama.config).eval()
    llama_again.load_state_dict(rounded)
    torch.testing.assert_close(ours, llama_again(prompt).logits[:, -1:])


def test_experts_and_norms(tmp_path: Path) -> None:
    """Stacked experts are found one by one; the norms of Gemma are stored plus one."""
    rows = {each.name: each for each in architectures()}
    model = rows["gemma2"].build()
    inputs = rows["gemma2"].inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ir = extract_ir(model, (), kwargs=inputs, strict=False)
    blocks = model.config.num_hidden_layers
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA2, blocks)
    tensors = {
        names.get_name(key, try_suffixes=(".weight",)): ((each + 1 if "norm" in key else each).numpy(), KINDS.F32)
        for key, each in model.state_dict().items() if key != "lm_head.weight"
    }  # fmt: skip
    path = write(tmp_path / "gemma.gguf", "gemma2", tensors, block_count=blocks)
    ours = IRExecutor(ir, load_weights(path))(**inputs)["logits"]
    torch.testing.assert_close(ours, model(**inputs).logits)
    stack = np.arange(3 * 2 * 32, dtype=np.float32).reshape(3, 2, 32)
    experts = {"blk.0.ffn_gate_exps.weight": (gguf.quants.quantize(stack, KINDS.Q8_0), KINDS.Q8_0)}
    opened = open_weights(write(tmp_path / "moe.gguf", "qwen3moe", experts, block_count=1))
    keys = [f"model.layers.0.mlp.experts.{number}.gate_proj.weight" for number in range(3)]
    whole = opened["blk.0.ffn_gate_exps.weight"].load()
    for number, found in enumerate(opened.for_keys(keys).values()):
        assert isinstance(found, GgufTensor)
        assert torch.equal(found.load(), whole[number])


def test_the_command_compares_the_header(llama: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(llama, tmp_path / "llama.gguf", "llama", {})
    extract_llm(llama, batch=1, prompt=5, cache_length=8).save(tmp_path / "graph.json")
    assert main(["weights", "check", str(tmp_path / "graph.json"), str(path)]) == 0
    assert "12 of 12 tensors are used" in capsys.readouterr().out


def _header(*parts: bytes) -> bytes:
    return b"".join((b"GGUF", struct.pack("<I", 3), *parts))


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


_ONE = struct.pack("<QQ", 1, 0)
HOSTILE = {
    "empty": (b"", "ends within its header"),
    "another file": (b"PK\x03\x04" + bytes(40), "does not begin with GGUF"),
    "big endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "version 50331648 is not supported"),
    "many tensors": (_header(struct.pack("<QQ", 1 << 60, 0)), "tensors are more than"),
    "many fields": (_header(struct.pack("<QQ", 0, 1 << 60)), "fields are more than"),
    "long text": (_header(struct.pack("<QQ", 0, 1), struct.pack("<Q", 1 << 62)), "bytes of text are more than"),
    "text past the end": (_header(struct.pack("<QQ", 0, 1), struct.pack("<Q", 500)), "ends within its header"),
    "not text": (_header(struct.pack("<QQ", 0, 1), _text(b"\xff\xfe")), "is not a GGUF file"),
    "nested arrays": (
        _header(struct.pack("<QQ", 0, 1), _text(b"a"), struct.pack("<IIQ", 9, 9, 1)),
        "items of the unsupported type 9",
    ),
    "endless array": (
        _header(struct.pack("<QQ", 0, 1), _text(b"a"), struct.pack("<IIQ", 9, 4, 1 << 40)),
        "items of an array are more than",
    ),
    "unknown field": (_header(struct.pack("<QQ", 0, 1), _text(b"a"), struct.pack("<I", 77)), "unknown type 77"),
    "many dimensions": (_header(_ONE, _text(b"w"), struct.pack("<I", 9)), "dimensions of 'w' are more than 4"),
    "past the end": (_header(_ONE, _text(b"w"), struct.pack("<IQIQ", 1, 1 << 40, 0, 0)), "ends after the end"),
    "offset past the end": (_header(_ONE, _text(b"w"), struct.pack("<IQIQ", 1, 1, 0, 1 << 63)), "ends after the end"),
    "not aligned": (_header(_ONE, _text(b"w"), struct.pack("<IQIQ", 1, 1, 0, 7), bytes(99)), "is not aligned"),
    "unknown format": (_header(_ONE, _text(b"w"), struct.pack("<IQIQ", 1, 32, 200, 0), bytes(99)), "format type 200"),
    "broken block": (
        _header(_ONE, _text(b"w"), struct.pack("<IQIQ", 1, 33, 2, 0), bytes(99)),
        "not whole blocks of 32",
    ),
    "alignment of zero": (
        _header(struct.pack("<QQ", 0, 1), _text(b"general.alignment"), struct.pack("<II", 4, 0)),
        "general.alignment is 0",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_headers(name: str, tmp_path: Path) -> None:
    """Each is rejected with one sentence, before anything large is read or allocated."""
    data, message = HOSTILE[name]
    (tmp_path / "w.gguf").write_bytes(data)
    with pytest.raises(WeightLoadError, match=message):
        open_weights(tmp_path / "w.gguf")


def test_every_cut_of_a_file(tmp_path: Path) -> None:
    """A file that ends early is rejected wherever it ends."""
    path = write(tmp_path / "w.gguf", "llama", {"w": (np.ones((2, 32), np.float32), KINDS.F32)}, block_count=1)
    data = path.read_bytes()
    for size in range(0, len(data) - 1, 5):
        path.write_bytes(data[:size])
        with pytest.raises(WeightLoadError):
            open_weights(path)["w"].load()


def test_an_unknown_architecture(llama: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "w.gguf", "bert", {"w": (np.ones((2, 32), np.float32), KINDS.F32)})
    with pytest.raises(WeightLoadError, match="has the architecture 'bert', whose tensors are not mapped"):
        IRExecutor(extract_llm(llama, batch=1, prompt=5, cache_length=8), load_weights(path))
