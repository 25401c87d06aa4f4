"""`torch_ir.llm.compile`: tokens equal those of transformers, greedy and sampled, with the cache in place."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tests.architectures import architectures
from torch_ir import IR, ExecutionError, ExportError
from torch_ir.backends.gpu.decode_attention import with_decode_attention
from torch_ir.backends.gpu.row_product import with_row_products
from torch_ir.errors import CommandError
from torch_ir.ir import TensorMeta
from torch_ir.llm import CompiledLLM, cache_in_place, cache_map, compile, extract_llm, generate
from torch_ir.llm.cache_layout import CACHE, keyword_inputs
from torch_ir.llm.compiled.token_choice import Greedy, Sampled, candidates
from torch_ir.quantization import quantize
from torch_ir.run import IRExecutor

NAMES = ("llama", "mixtral", "gemma", "gpt2", "qwen2")
RARE = ("llama", "gemma", "qwen2")  # compared with the others, or like them
TOKENS, LENGTH = 8, 32
BY_NAME = {each.name: each for each in architectures()}


def build(name: str) -> Any:
    torch.manual_seed(0)
    return BY_NAME[name].build().eval()


def prompt_of(model: Any, batch: int = 2, tokens: int = 6) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(3, model.config.vocab_size, (batch, tokens))


def greedy(model: Any, prompt: Tensor, count: int = TOKENS, **options: Any) -> Tensor:
    """Return the new tokens of transformers' own generation."""
    options = {"eos_token_id": None, "pad_token_id": 0, **options}
    mask = torch.ones_like(prompt)
    found = model.generate(prompt, attention_mask=mask, max_new_tokens=count, do_sample=False, **options)
    tokens: Tensor = found[:, prompt.shape[1] :]
    return tokens


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama")


@pytest.fixture(scope="module")
def graphs(llama: Any) -> IR:
    return extract_llm(llama.config, cache_length=LENGTH, weight_layout="model")


@pytest.fixture(scope="module")
def compiled(llama: Any, graphs: IR) -> CompiledLLM:
    return compile(graphs, llama.state_dict(), backend="torch", batch=2)


# -- the cache in place -----------------------------------------------------------------------------------------------


def test_a_cache_in_place_is_a_change_of_the_inputs(llama: Any, graphs: IR) -> None:
    """Both graphs change their cache inputs and return none; the map of the cache and a file keep that."""
    ir = IR.from_json(cache_in_place(graphs).to_json())
    for graph in (ir, ir.functions["decode"]):
        cache = keyword_inputs(graph, CACHE)
        assert {target for target, _ in graph.mutations} == set(cache.values())
        assert list(cache) == [each.name for each in cache_map(graphs)]
        assert len(graph.graph_outputs) == 1
    assert [(each.decode_input, each.decode_output) for each in cache_map(ir)] == [
        (each.decode_input, each.decode_output) for each in cache_map(graphs)
    ]
    prompt = prompt_of(llama)
    assert torch.equal(generate(ir, llama.state_dict(), TOKENS, input_ids=prompt), greedy(llama, prompt))


def test_a_decode_step_writes_to_the_callers_cache(llama: Any, graphs: IR) -> None:
    """The executor keeps the buffers and changes one row of each."""
    decode = cache_in_place(graphs).functions["decode"]
    step = IRExecutor(decode, llama.state_dict(), in_place=True)
    cache = {name: torch.zeros(1, *map(int, t.shape[1:])) for name, t in keyword_inputs(decode, CACHE).items()}
    places = [tensor.data_ptr() for tensor in cache.values()]
    output = step(input_ids=torch.tensor([[5]]), cache=cache, position=torch.tensor(3))
    assert list(output) == ["logits"]
    assert [tensor.data_ptr() for tensor in cache.values()] == places
    for tensor in cache.values():
        assert tensor.abs().sum((0, 1, 3)).nonzero().flatten().tolist() == [3]


def test_a_cache_that_grows_is_refused(llama: Any) -> None:
    growing = extract_llm(llama.config)
    with pytest.raises(ExportError, match=r"'layers.0.key' grows from .* cannot be kept in place; .* cache_length"):
        cache_in_place(growing)
    with pytest.raises(ExportError, match="pass cache_length"):
        extract_llm(llama.config, in_place=True)
    with pytest.raises(ExecutionError, match="extract it with cache_length"):
        compile(growing, llama.state_dict())


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in RARE else name for name in NAMES]
)
def test_greedy_tokens_are_those_of_transformers(name: str) -> None:
    """The graphs are optimised, compiled for a batch of two, and run twice over the same buffers."""
    model = build(name)
    ir = extract_llm(model.config, cache_length=LENGTH, weight_layout="model")
    found = compile(ir, model.state_dict(), backend="torch", batch=2)
    for tokens in (6, 4):
        prompt = prompt_of(model, tokens=tokens)
        assert torch.equal(found.generate(prompt, TOKENS), greedy(model, prompt))


def test_a_first_layer_with_a_convolution_does_not_limit_the_tokens() -> None:
    """The state of three tokens in the first layer of LFM2, which decode writes to already, is no cache of keys."""
    model = build("lfm2")
    ir = extract_llm(model.config, cache_length=LENGTH, weight_layout="model", batch=2)
    found = compile(ir, model.state_dict(), backend="torch", level=None)
    assert found.sizes.length == LENGTH
    for tokens in (6, 4):
        prompt = prompt_of(model, tokens=tokens)
        assert torch.equal(found.generate(prompt, TOKENS), greedy(model, prompt))


def test_a_stream_yields_the_tokens_and_ends(llama: Any, compiled: CompiledLLM) -> None:
    """Rows that have ended are padded; all rows ended is the end, as in transformers."""
    prompt = prompt_of(llama)
    plain = greedy(llama, prompt)
    assert torch.equal(torch.stack(list(compiled.stream(prompt, TOKENS)), dim=1), plain)
    ends = [int(plain[0, 2]), int(plain[1, 5])]
    wanted = greedy(llama, prompt, eos_token_id=ends, pad_token_id=1)
    found = compiled.generate(prompt, TOKENS, eos_token_id=ends, pad_token_id=1)
    assert torch.equal(found, wanted)


def test_a_stream_that_another_request_interrupts_says_so(llama: Any, compiled: CompiledLLM) -> None:
    prompt = prompt_of(llama)
    stream = compiled.stream(prompt, TOKENS)
    next(stream)
    compiled.generate(prompt, 2)
    with pytest.raises(ExecutionError, match="another generation has started"):
        next(stream)


def test_prompts_that_are_too_short_for_prefill_are_decoded(llama: Any, compiled: CompiledLLM) -> None:
    """As `generate` does, over a cache that another request has filled."""
    compiled.generate(prompt_of(llama, tokens=9), TOKENS)
    prompt = prompt_of(llama, tokens=1)
    assert torch.equal(compiled.generate(prompt, TOKENS), greedy(llama, prompt))
    assert torch.equal(compiled.generate(prompt, 1), greedy(llama, prompt, 1))
    drawn = [compiled.generate(prompt, TOKENS, do_sample=True, seed=7) for _ in range(2)]
    assert torch.equal(*drawn)


def test_graphs_that_return_all_logits(llama: Any) -> None:
    ir = extract_llm(llama.config, cache_length=LENGTH, weight_layout="model", all_logits=True)
    prompt = prompt_of(llama)
    found = compile(ir, llama.state_dict(), backend="torch", batch=2, level=None)
    assert torch.equal(found.generate(prompt, TOKENS), greedy(llama, prompt))


def test_the_cache_fills_to_its_last_slot(llama: Any, compiled: CompiledLLM) -> None:
    prompt = prompt_of(llama)
    count = LENGTH - prompt.shape[1] + 1
    assert torch.equal(compiled.generate(prompt, count), greedy(llama, prompt, count))


@pytest.mark.slow
def test_weights_of_eight_and_four_bits(llama: Any, graphs: IR) -> None:
    """The compiled graphs generate what the executor generates from the same quantised graphs."""
    prompt = prompt_of(llama)
    for scheme in ("int8", "int4"):
        ir = quantize(graphs, scheme)[0]
        found = compile(ir, llama.state_dict(), backend="torch", batch=2)
        assert torch.equal(found.generate(prompt, TOKENS), generate(ir, llama.state_dict(), TOKENS, input_ids=prompt))


# -- sampling ---------------------------------------------------------------------------------------------------------

SETTINGS = [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.6), (0.9, 20, 0.8), (2.0, 1, 0.1), (1.0, 0, 1e-6)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_probabilities_are_those_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    """Filters apply in the order of transformers; among equal logits are some at every border."""
    torch.manual_seed(0)
    logits = torch.randn(3, 64).mul(2).round(decimals=1)
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    found, order = candidates(logits, torch.tensor([temperature, top_k or 64, top_p]))
    torch.testing.assert_close(torch.zeros_like(found).scatter(-1, order, found), scores.softmax(-1))


def test_samples_follow_the_probabilities() -> None:
    """Of evenly spread numbers, each token gets its share, and a token without probability none."""
    logits = torch.tensor([[[0.0, 2.0, 1.0, -1.0]]])
    settings = torch.tensor([1.0, 3.0, 1.0])
    drawn = torch.linspace(0, 1, 10001)[:-1]
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    place = torch.tensor(0)
    found = [int(Sampled()(logits, tokens, place, u.reshape(1, 1), settings)[0]) for u in drawn[::10]]
    share = torch.tensor([found.count(token) / len(found) for token in range(4)])
    wanted = torch.tensor([0.0, 2.0, 1.0, -torch.inf]).softmax(-1)
    torch.testing.assert_close(share, wanted, atol=2e-3, rtol=0)


def test_the_most_likely_token_is_the_first_maximum() -> None:
    torch.manual_seed(0)
    for count in (7, 512, 1000, 1026):
        logits = torch.randint(0, 5, (3, 1, count)).float()
        token, tokens = Greedy()(logits, torch.zeros(3, 4, dtype=torch.int64), torch.tensor(2))
        assert torch.equal(token[:, 0], logits[:, 0].argmax(-1))
        assert torch.equal(tokens[:, 2], token[:, 0])
        assert not tokens[:, [0, 1, 3]].any()


def test_a_seed_determines_the_sample(llama: Any, compiled: CompiledLLM) -> None:
    """The same seed gives the same tokens; a narrow filter gives the greedy ones."""
    prompt = prompt_of(llama)
    one, same, other = (compiled.generate(prompt, 16, do_sample=True, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(compiled.generate(prompt, TOKENS, do_sample=True, top_k=1), greedy(llama, prompt))
    state = torch.get_rng_state()
    compiled.generate(prompt, 2, do_sample=True, seed=3)
    assert torch.equal(torch.get_rng_state(), state)


# -- bad requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": torch.zeros(2, 6)}, r"input_ids must be a tensor of integers .*, not torch.float32\[2, 6\]"),
        ({"input_ids": torch.zeros(3, 6, dtype=torch.int64)}, "compiled for a batch of 2, not 3; pass batch=3"),
        ({"input_ids": torch.zeros(2, 0, dtype=torch.int64)}, "a prompt must have 1 to 31 tokens, not 0"),
        ({"input_ids": torch.zeros(2, 32, dtype=torch.int64)}, "a prompt must have 1 to 31 tokens, not 32"),
        ({"input_ids": torch.full((2, 6), 1 << 40)}, "input_ids contain 1099511627776, which is not a token from 0 to"),
        ({"input_ids": [[1, 2]]}, r"not \[\[1, 2\]\]"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a positive integer, not 0"),
        ({"max_new_tokens": 28}, "a prompt of 6 tokens leaves room for 27 new ones in a cache of 32, not for 28"),
        ({"temperature": 0.0}, "temperature must be positive, not 0.0; for 0, use do_sample=False"),
        ({"temperature": float("nan")}, "temperature must be positive"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"top_p": "all"}, "top_p must be a number, not 'all'"),
        ({"seed": "x"}, "seed must be an integer of 64 bits, not 'x'"),
        ({"seed": 1 << 64}, "seed must be an integer of 64 bits"),
        ({"eos_token_id": torch.tensor(3)}, r"eos_token_id must be a token or a list of tokens, not tensor\(3\)"),
        ({"pad_token_id": "end"}, "pad_token_id must be a token, not 'end'"),
        ({"top_k": -1}, "top_k must be a number of tokens"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"eos_token_id": -5}, "eos_token_id -5 is not a token"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(compiled: CompiledLLM, change: dict[str, Any], message: str) -> None:
    request = {"input_ids": torch.full((2, 6), 5), "max_new_tokens": 2, "do_sample": True, **change}
    for call in (compiled.generate, compiled.stream):
        with pytest.raises(ExecutionError, match=message):
            call(**request)


def test_graphs_that_cannot_be_served_are_refused(llama: Any, graphs: IR) -> None:
    with pytest.raises(CommandError, match="'onednn' does not update a cache in place; use inductor or torch"):
        compile(graphs, llama.state_dict(), backend="onednn")
    padded = graphs.clone()
    padded.functions["decode"].graph_inputs.append(TensorMeta("attention_mask", (1, LENGTH), "int64"))
    with pytest.raises(ExecutionError, match="needs attention_mask"):
        compile(padded, llama.state_dict())
    for number in range(9):
        extra = TensorMeta(f"lora_{number}", (1,), "int64")
        padded.functions["decode"].graph_inputs.append(extra)
    with pytest.raises(ExecutionError, match=r"needs attention_mask, lora_0, lora_1, \.\.\. cannot be compiled"):
        compile(padded, llama.state_dict())
    with pytest.raises(ExecutionError, match="the graphs have a batch of 1, not 2"):
        compile(graphs.specialize(batch=1), llama.state_dict(), batch=2)
    with pytest.raises(ExecutionError, match="'nowhere' is not available"):
        compile(graphs, llama.state_dict(), device="nowhere")


# -- operators for a GPU ----------------------------------------------------------------------------------------------


ATTENTION = """
graph Attention(q: bfloat16[2, 8, 1, 16], k: bfloat16[2, 2, 40, 16], v: bfloat16[2, 2, 40, 16], m: bool[2, 1, 1, 40]) {
  y: bfloat16[2, 8, 1, 16] = aten.scaled_dot_product_attention.default(query=q, key=k, value=v, attn_mask=m, \
dropout_p=0.0, is_causal=False, scale=None, enable_gqa=True)
  return y
}
""".replace("\\\n", "")


def test_attention_of_one_query_becomes_an_operator_for_a_gpu() -> None:
    """Its definition, which other devices run, equals the attention that it replaces."""
    ir = IR.parse(ATTENTION)
    rewritten = with_decode_attention(ir)
    assert [node.op_type for node in rewritten.nodes] == ["torch_ir.decode_attention.default"]
    torch.manual_seed(0)
    given = [torch.randn(tuple(map(int, each.shape))).bfloat16() for each in ir.graph_inputs[:3]]
    given.append(torch.arange(40).expand(2, 1, 1, 40) < torch.tensor([7, 33]).reshape(2, 1, 1, 1))
    torch.testing.assert_close(IRExecutor(rewritten, {}).run(given).outputs, IRExecutor(ir, {}).run(given).outputs)


@pytest.mark.parametrize(
    ("old", "new"),
    [("bfloat16", "float32"), ("is_causal=False", "is_causal=True"), ("m: bool", "m: bfloat16"), (", 16]", ", 24]")],
)
def test_other_attention_is_left_to_torch(old: str, new: str) -> None:
    ir = IR.parse(ATTENTION.replace(old, new))
    assert [node.op_type for node in with_decode_attention(ir).nodes] == ["aten.scaled_dot_product_attention.default"]


def test_linear_layers_of_one_row_become_row_products() -> None:
    """Only large ones of one row; with and without a bias."""
    text = """
    graph Rows(x: float32[1, 1, 512], two: float32[2, 512]) {
      param w: float32[256, 512] = "w"
      param b: float32[256] = "b"
      one: float32[1, 1, 256] = aten.linear.default(input=x, weight=w, bias=None)
      biased: float32[1, 1, 256] = aten.linear.default(input=x, weight=w, bias=b)
      both: float32[2, 256] = aten.linear.default(input=two, weight=w, bias=b)
      return (one, biased, both)
    }
    """
    ir = IR.parse(text)
    rewritten = with_row_products(ir)
    assert [node.op_type.split(".")[1] for node in rewritten.nodes] == ["row_product", "row_product", "linear"]
    torch.manual_seed(0)
    weights = {"w": torch.randn(256, 512), "b": torch.randn(256)}
    given = [torch.randn(1, 1, 512), torch.randn(2, 512)]
    torch.testing.assert_close(
        IRExecutor(rewritten, weights).run(given).outputs, IRExecutor(ir, weights).run(given).outputs
    )


# -- Inductor ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_inductor_generates_the_tokens_of_transformers(name: str) -> None:
    model = build(name)
    prompt = prompt_of(model, batch=1)
    ir = extract_llm(model.config, cache_length=LENGTH, weight_layout="model")
    found = compile(ir, model.state_dict())
    assert torch.equal(found.generate(prompt, TOKENS), greedy(model, prompt))
    assert torch.equal(found.generate(prompt, TOKENS, do_sample=True, top_k=1), greedy(model, prompt))
