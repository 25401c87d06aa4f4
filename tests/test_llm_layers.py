"""Layers of language models that keep more than keys and values, and prompts that are too short for prefill."""

from typing import Any

import pytest
import torch
import transformers

from tests.architectures import architectures
from torch_ir import ExecutionError
from torch_ir.llm import cache_map, checkpoint_weights, extract_llm, verify_llm
from torch_ir.llm.generation import Generator

BY_NAME = {each.name: each for each in architectures()}


def build(name: str) -> Any:
    return BY_NAME[name].build()


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama")


@pytest.mark.parametrize(
    ("name", "cache_length"),
    [
        ("falcon_h1", 24),
        pytest.param("falcon_h1", None, marks=pytest.mark.slow),
        pytest.param("zamba", 24, marks=pytest.mark.slow),
        pytest.param("zamba2", 24, marks=pytest.mark.slow),
    ],
)
def test_keys_and_recurrent_states_in_one_layer(name: str, cache_length: int | None) -> None:
    """The layer has both in the cache, and the tokens are those of the model."""
    model = build(name)
    ir = extract_llm(model, prompt=8, cache_length=cache_length)
    kept = {tensor.name.partition(".")[2].partition(".")[2] for tensor in cache_map(ir)}
    assert kept == {"key", "value", "conv.0", "recurrent.0"}
    is_valid, told = verify_llm(ir, model, 6, input_ids=torch.randint(3, 50, (2, 8)))
    assert is_valid, told


@pytest.mark.parametrize("cache_length", [24, pytest.param(None, marks=pytest.mark.slow)])
def test_keys_of_an_indexer(cache_length: int | None) -> None:
    """Sparse attention that selects tokens (DeepSeek-V3.2, GLM-5) keeps the keys of its indexer in the cache, too."""
    config = transformers.GlmMoeDsaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, q_lora_rank=16,
        kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, index_n_heads=16, index_head_dim=16,
        index_topk=4, first_k_dense_replace=1, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GlmMoeDsaForCausalLM(config).eval()
    ir = extract_llm(model, batch=2, prompt=8, cache_length=cache_length)
    index = next(tensor for tensor in cache_map(ir) if tensor.name == "layers.0.index")
    assert index.shape == (2, cache_length or "past", 16)
    is_valid, told = verify_llm(ir, model, 6, input_ids=torch.randint(3, 50, (2, 8)))
    assert is_valid, told


# -- short prompts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"cache_length": 16, "padding": True}, {"cache_length": 16, "in_place": True}])
def test_a_prompt_of_one_token(llama: Any, options: dict[str, Any]) -> None:
    """It is decoded from an empty cache, because prefill has other code for one token."""
    ir = extract_llm(llama, **options)
    given = {"input_ids": torch.randint(3, 99, (3, 1))}
    if "padding" in options:
        given["attention_mask"] = torch.ones(3, 1, dtype=torch.int64)
    is_valid, told = verify_llm(ir, llama, 6, **given)
    assert is_valid, told


def test_a_prompt_shorter_than_a_convolution() -> None:
    """Recurrent states start at zero, and the tokens of the prompt are decoded one by one."""
    model = build("lfm2")
    ir = extract_llm(model, batch=2, prompt=6, padding=True)
    for length in (1, 2, 5):
        ids = torch.randint(3, 50, (2, length))
        is_valid, told = verify_llm(ir, model, 4, input_ids=ids, attention_mask=torch.ones_like(ids))
        assert is_valid, told
    mask = torch.tensor([[0, 1], [1, 1]])
    with pytest.raises(ExecutionError, match="a padded prompt must have at least 6 tokens, not 2"):
        verify_llm(ir, model, 4, input_ids=torch.randint(3, 50, (2, 2)), attention_mask=mask)


def test_a_model_that_asks_whether_there_is_a_past() -> None:
    """XGLM does: its decode takes no empty cache, and the range says so."""
    model = build("xglm")
    ir = extract_llm(model)
    assert ir.functions["decode"].symbols["past"].min == 1
    with pytest.raises(ExecutionError, match="past = 0 is out of range: 1 <= past"):
        verify_llm(ir, model, 4, input_ids=torch.tensor([[5]]))


def test_a_fixed_cache_without_keys() -> None:
    """Recurrent states have no length: a limit of tokens does not apply."""
    model = build("mamba")
    ir = extract_llm(model, batch=2, prompt=6, cache_length=8)
    is_valid, told = verify_llm(ir, model, 6, input_ids=torch.randint(3, 50, (2, 6)))
    assert is_valid, told


# -- masks ------------------------------------------------------------------------------------------------------------


def test_a_prompt_that_contains_the_padding_token(llama: Any) -> None:
    """`generate` would mask tokens with the number of padding; without a mask, both sides see every token."""
    ids = torch.randint(3, 99, (2, 8))
    ids[0, :2] = ids[1, 4] = llama.config.pad_token_id
    assert llama.config.pad_token_id == 0
    is_valid, told = verify_llm(extract_llm(llama, batch=2, prompt=8, cache_length=16), llama, 6, input_ids=ids)
    assert is_valid, told


def test_bfloat16_with_a_fixed_cache() -> None:
    """Logits are bit for bit those of the model with a StaticCache: the same keys, masks and kernels."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
    model = transformers.LlamaForCausalLM(config).eval().to(torch.bfloat16)
    ids = torch.randint(3, 128, (2, 9))
    steps = Generator(extract_llm(model, cache_length=32), checkpoint_weights(model)).steps(6, {"input_ids": ids})
    cache = transformers.StaticCache(config=config, max_cache_len=32)
    position = 0
    for logits in steps:
        positions = torch.arange(position, position + ids.shape[1])[None]
        with torch.no_grad():
            own = model(input_ids=ids, past_key_values=cache, position_ids=positions, logits_to_keep=1).logits
        assert torch.equal(logits, own)
        position, ids = position + ids.shape[1], logits.argmax(-1)
