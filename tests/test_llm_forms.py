"""Forms of language models: each generates the model's tokens, or is refused before capture."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import transformers

from tests.architectures import architectures
from tests.language_models import NOT_CARRIED, REFUSED_FORMS, language_models
from torch_ir import CaptureWarning, ExportError
from torch_ir.llm import extract_llm, tiny_check, verify_llm
from torch_ir.llm.caches import Caches
from torch_ir.llm.encoder_decoder import EncoderDecoder
from torch_ir.llm.entry_points import DecoderOnly
from torch_ir.llm.generation import compare_steps, example_prompt
from torch_ir.llm.tiny_config import shrunk
from torch_ir.run.benchmark import threads

BY_NAME = {each.name: each for each in architectures()}
FORMS = {"grows": (None, False), "grows, padded": (None, True), "fixed": (10, False), "fixed, padded": (10, True)}
CARRIED = [each.name for each in language_models() if each.name not in NOT_CARRIED]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 99}
TOKENS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def decoder(kind: str) -> Any:
    """A decoder of a type that is mostly an encoder."""
    options = {**SIZES, **TOKENS, "max_position_embeddings": 64, "initializer_range": 0.2}
    config = transformers.AutoConfig.for_model(kind, is_decoder=True, **options)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def differing_forms(name: str) -> set[str]:
    """Return the forms of a model whose prefill and decode differ from `generate`, tested without a graph."""
    model: Any = BY_NAME[name].build()
    kind = EncoderDecoder if model.config.is_encoder_decoder else DecoderOnly

    def calls(tiny: Any, length: int | None, padding: bool) -> DecoderOnly:
        return kind(tiny, Caches.of(tiny.config, length), padding=padding)

    found = {
        form: tiny_check._found(model, lambda tiny, options=options: calls(tiny, *options))
        for form, options in FORMS.items()
    }
    return {form for form, reason in found.items() if reason and not reason.startswith(tiny_check.UNCHECKED)}


@pytest.mark.parametrize(
    ("kind", "cache_length"), [("roberta", None), ("roberta", 16), ("xlm-roberta", 16), ("camembert", 16)]
)
def test_positions_that_start_behind_the_padding_token(kind: str, cache_length: int | None) -> None:
    """RoBERTa counts from its padding index in forward, and from zero in `generate`, as these graphs do."""
    model = decoder(kind)
    ir = extract_llm(model, batch=2, prompt=6, cache_length=cache_length)
    is_valid, told = verify_llm(ir, model, 4, **example_prompt(ir, 6))
    assert is_valid, told


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "gpt_neo",
            {"cache_length": 16},
            "GPTNeoForCausalLM with a cache of fixed length .*extract it without cache_length",
        ),
        ("imagegpt", {"cache_length": 16}, "ImageGPT.* with a cache of fixed length generates other tokens"),
        (
            "mamba",
            {"padding": True},
            "MambaForCausalLM with a cache that grows and padding .*extract it without padding",
        ),
    ],
)
def test_forms_that_would_be_wrong(name: str, options: dict[str, Any], message: str) -> None:
    """Unsupported forms are refused by name, before capture."""
    with pytest.raises(ExportError, match=message):
        extract_llm(BY_NAME[name].build(), batch=2, prompt=6, **options)


SAMPLE = sorted({*REFUSED_FORMS, *random.Random(0).sample(CARRIED, 6)})


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_forms(name: str) -> None:
    assert differing_forms(name) == REFUSED_FORMS.get(name, ("", frozenset()))[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CARRIED if name not in SAMPLE])
def test_every_form_of_every_language_model(name: str) -> None:
    assert differing_forms(name) == REFUSED_FORMS.get(name, ("", frozenset()))[1]


def test_a_model_that_cannot_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no tiny model can be built, the error says so."""
    monkeypatch.setattr(tiny_check, "_LARGEST", 0)
    monkeypatch.setattr(tiny_check, "_known", {})
    with pytest.warns(CaptureWarning, match="prefill and decode of LlamaForCausalLM were not checked on a tiny model"):
        extract_llm(BY_NAME["llama"].build(), batch=2, prompt=6, cache_length=16)


def test_a_tiny_model_runs_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two captures at once leave the number of threads as it was."""
    counts = []

    def compare(*args: Any) -> tuple[bool, str]:
        counts.append(torch.get_num_threads())
        return compare_steps(*args)

    monkeypatch.setattr(tiny_check, "compare_steps", compare)
    monkeypatch.setattr(tiny_check, "_known", {})
    with threads(3), ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: extract_llm(BY_NAME[name].build(), batch=2, prompt=6), ["llama", "qwen3"]))
        assert torch.get_num_threads() == 3
    assert counts == [1, 1]


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3", "gpt_neo", "gptj", "qwen3_moe", "t5"])
def test_configurations_are_shrunk(kind: str) -> None:
    """A published configuration becomes tiny, including derived sizes."""
    config = transformers.AutoConfig.for_model(kind)
    before = config.to_dict()
    with torch.device("meta"):
        made = transformers.AutoModel.from_config(shrunk(config))
    assert sum(parameter.numel() for parameter in made.parameters()) < 200_000
    assert config.to_dict() == before


def test_tables_that_every_call_writes() -> None:
    """Phi-3 with longrope writes its frequencies in every call; when they change, it recomputes its cache."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    sizes = {**SIZES, "max_position_embeddings": 64, "num_hidden_layers": 1, "num_key_value_heads": 2}
    config = transformers.Phi3Config(
        **sizes, **TOKENS, original_max_position_embeddings=16, rope_parameters=rope, initializer_range=0.2
    )
    torch.manual_seed(0)
    model = transformers.Phi3ForCausalLM(config).eval()
    ir = extract_llm(model, batch=2, prompt=6, cache_length=16)
    is_valid, told = verify_llm(ir, model, 8, **example_prompt(ir, 6))
    assert is_valid, told
    with pytest.raises(ExportError, match="recomputes its whole cache after 16 tokens"):
        extract_llm(model, batch=2, prompt=6, cache_length=32)
