"""Costs against calculations by hand: a Llama, a Mixtral, experts on ranks, equal prices of equal graphs."""

import itertools
import re
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig

from tests.proof import captured, module, quiet
from torch_ir import IR, GraphError, cost, cost_report, extract_ir, pipeline_report, register_cost, shard, split
from torch_ir.analysis import Roofline
from torch_ir.analysis.cost_model import user_formulas
from torch_ir.analysis.cost_model.routing import Routing
from torch_ir.analysis.cost_model.table_text import as_text
from torch_ir.errors import RegistryError, ShardError
from torch_ir.llm import extract_llm
from torch_ir.sharding import transformers_plan

HIDDEN, FEED, KEYS, VOCABULARY = 4096, 14336, 1024, 128256  # Llama-8B: 32 heads of 128, 8 of them for keys
LAYER_WEIGHTS = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEYS + 3 * HIDDEN * FEED
LAYERS, PROMPT = 2, 512


def llama(blocks: str) -> IR:
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=FEED, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=VOCABULARY, num_hidden_layers=LAYERS, dtype="bfloat16", use_cache=False,
    )  # fmt: skip
    with torch.device("meta"), quiet():
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        tokens = {"input_ids": torch.empty(1, PROMPT, dtype=torch.int64)}
        return extract_ir(model, (), kwargs=tokens, blocks=blocks)


@pytest.fixture(scope="module")
def llamas() -> tuple[IR, IR]:
    return llama("inline"), llama("function")


def test_flops_of_a_llama_by_hand(llamas: tuple[IR, IR]) -> None:
    products = 2 * PROMPT * (LAYERS * LAYER_WEIGHTS + HIDDEN * VOCABULARY)
    attention = LAYERS * 2 * 2 * PROMPT * PROMPT * HIDDEN  # queries by keys, and the result by values
    for ir in llamas:
        assert cost(ir).flops == products + attention


def test_bytes_of_the_products_of_a_llama_by_hand(llamas: tuple[IR, IR]) -> None:
    """Every weight once, every input and every output, in bfloat16."""
    shapes = [(HIDDEN, HIDDEN)] * 2 + [(HIDDEN, KEYS)] * 2 + [(HIDDEN, FEED)] * 2 + [(FEED, HIDDEN)]
    shapes = shapes * LAYERS + [(HIDDEN, VOCABULARY)]
    by_hand = sum(2 * (rows * columns + PROMPT * (rows + columns)) for rows, columns in shapes)
    for ir in llamas:
        assert cost(ir).by_op()["aten.linear.default"].bytes == by_hand


def test_the_function_form_has_the_price_of_the_inline_form(llamas: tuple[IR, IR]) -> None:
    """The time of a call is the sum over the nodes inside, some of them compute-bound, others memory-bound."""
    flat, folded = llamas
    device = Roofline(peak=100e12, bandwidth=1e12)
    reports = [pipeline_report(split(ir, 2, device=device), device=device).rows for ir in llamas]
    assert len(folded.nodes) < len(flat.nodes)
    assert [row.last for row in reports[0]] == [row.last for row in reports[1]]
    assert [row.seconds for row in reports[0]] == pytest.approx([row.seconds for row in reports[1]], rel=1e-9)
    whole = cost_report(flat, device=device).total
    assert sum(row.seconds for row in reports[1]) == pytest.approx(whole.seconds, rel=1e-3)
    assert min(whole.computing, whole.moving) > 0
    assert whole.seconds > device.seconds(whole.work) * 1.05  # the sum of maxima, not the maximum of sums


def test_layers_that_cost_the_same_are_one_row(llamas: tuple[IR, IR]) -> None:
    report = cost_report(llamas[0], depth=4)
    rows = {row.name: row for row in report.rows}
    products = 2 * PROMPT * LAYERS * 3 * HIDDEN * FEED
    assert rows["model.layers.*.mlp"].work.flops == products
    assert rows["model.layers.*.mlp"].to_dict()["modules"] == ["model.layers.0.mlp", "model.layers.1.mlp"]
    assert "model.layers.*.mlp \N{MULTIPLICATION SIGN}2" in str(report)
    each = {row.name: row for row in cost_report(llamas[0], depth=4, fold=False).rows}
    assert each["model.layers.1.mlp"].work.flops == products // 2
    assert sum(row.count for row in report.rows) == sum(row.count for row in each.values())


class Widths(nn.Module):
    """Layers 0, 1 and 3 are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, n), nn.Linear(n, 4)) for n in (8, 8, 16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_that_differ_are_named_by_their_numbers() -> None:
    names = [row.name for row in cost_report(captured(Widths().eval(), torch.randn(2, 4)), depth=2).rows]
    assert sorted(names) == ["layers.0-1,3", "layers.2"]


# -- experts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "choices", "experts"), [(1, 2, 4), (3, 2, 4), (4, 1, 3), (2, 3, 3)])
def test_expected_experts_are_the_mean_over_all_choices(tokens: int, choices: int, experts: int) -> None:
    routing = Routing(tokens, choices, experts)
    one = list(itertools.combinations(range(experts), choices))
    every = [[set(each) for each in chosen] for chosen in itertools.product(one, repeat=tokens)]
    for held in range(1, experts + 1):
        mine = set(range(held))
        used = [len(set().union(*chosen) & mine) for chosen in every]
        rows = [sum(len(each & mine) for each in chosen) for chosen in every]
        assert routing.used(held, "expected") == pytest.approx(sum(used) / len(used))
        assert routing.rows(held, "expected") == pytest.approx(sum(rows) / len(rows))
        assert (routing.used(held, "lower"), routing.used(held, "upper")) == (min(used), max(used))
        assert (routing.rows(held, "lower"), routing.rows(held, "upper")) == (min(rows), max(rows))


EXPERT = 3 * 4096 * 14336 * 2  # bytes of one expert of Mixtral-8x7B


@pytest.fixture(scope="module")
def mixtral() -> IR:
    with quiet():
        return extract_llm(MixtralConfig(num_hidden_layers=1, dtype="bfloat16"), prompt=512, weight_layout="model")


@pytest.mark.parametrize(("batch", "expected"), [(1, 2), (2, 3.5), (8, 8 * (1 - 0.75**8))])
def test_experts_of_a_mixtral_by_hand(mixtral: IR, batch: int, expected: float) -> None:
    """One token reads two of eight experts; two tokens read 2, 3 or 4, with 1, 12 and 15 of 28 chances."""
    sizes = {"batch": batch, "past": 1024}
    decode = mixtral.functions["decode"]
    report = cost_report(decode, "op", sizes=sizes, device=Roofline(990e12, 3.35e12))
    grouped = next(row.work for row in report.rows if row.name == "aten._grouped_mm.default")
    moved = batch * 2 * 2 * (4096 + 2 * 14336 + 14336 + 4096)  # rows in and out of both products
    assert grouped.bytes == pytest.approx(expected * EXPERT + moved, rel=1e-6)
    assert grouped.flops == batch * 2 * EXPERT
    if batch == 1:
        assert report.lower is report.upper is None
        assert "data_dependent" not in report.to_dict()
        return
    assert report.lower is not None
    assert report.upper is not None
    spread = report.to_dict()["data_dependent"]
    assert spread["expected"] == report.to_dict()["total"]
    most = min(8, 2 * batch)
    difference = report.upper.work.bytes - report.lower.work.bytes  # type: ignore[operator]  # numbers, sizes are given
    assert difference == (most - 2) * EXPERT
    assert report.lower.seconds < report.total.seconds < report.upper.seconds
    assert re.search("the data decides the bytes: .* expected, .* at least, .* at most", str(report))


def test_a_rank_of_experts_is_faster_than_the_whole(mixtral: IR) -> None:
    """Of 8 experts on 4 ranks, a rank expects a quarter of the rows, and reads a quarter of the weights."""
    config = MixtralConfig(num_hidden_layers=1)
    device = Roofline(990e12, 3.35e12)
    whole = mixtral.specialize(batch=16)
    plan = transformers_plan(config, whole, ranks=4, expert_parallel=True)
    ranked = shard(whole, plan, {"tp": 4})
    name = "aten._grouped_mm.default"
    assert cost(ranked).by_op()[name].flops * 4 == cost(whole).by_op()[name].flops  # type: ignore[operator]
    times = [cost_report(ir, device=device).total.seconds for ir in (whole, ranked)]
    assert times[1] < times[0]
    with quiet():
        separate = extract_llm(config, batch=1, prompt=8)  # the experts as a checkpoint stores them: one by one
    with pytest.raises(ShardError, match="--weight-layout model"):
        transformers_plan(config, separate, ranks=4, expert_parallel=True)


def test_sizes_that_the_data_decides_have_bounds_and_an_expectation() -> None:
    model = module(lambda self, x: self.a(x[x[:, 0] > 0]), a=nn.Linear(4, 8))
    report = cost_report(captured(model, torch.randn(10, 4)))
    (size,) = report.data_sizes.values()
    assert size == (0, 5, 10)
    assert report.lower is not None
    assert report.upper is not None
    assert [row.work.flops for row in (report.lower, report.total, report.upper)] == [0, 5 * 64, 10 * 64]
    assert "5 expected, 0 to 10 possible" in as_text(report)


# -- formulas of users ------------------------------------------------------------------------------------------------


def blurred() -> IR:
    return IR.parse("""
        graph(image: float32[3, 8, 8]) {
          blur: float32[3, 8, 8] = my_ops.blur.default(image=image)
          return blur
        }
    """)


@pytest.fixture
def formulas() -> Any:
    kept = dict(user_formulas._FORMULAS)
    yield
    user_formulas._FORMULAS.clear()
    user_formulas._FORMULAS.update(kept)


@pytest.mark.usefixtures("formulas")
def test_operators_bring_their_own_formulas() -> None:
    assert cost(blurred()).unknown == ("my_ops.blur.default",)

    @register_cost("my_ops.blur")
    def blur(node: Any) -> int:
        return 18 * 3 * 64

    counted = cost(blurred())
    assert (counted.flops, counted.macs, counted.bytes, counted.unknown) == (3456, 1728, 2 * 768, ())
    with pytest.raises(RegistryError, match=r"cost formula for 'my_ops\.blur' is already"):
        register_cost("my_ops.blur")(lambda node: 1)
    register_cost("my_ops.blur.default")(lambda node: (10, 20, 30))
    assert cost(blurred()).amounts() == (5, 10, 20, 30, 0)


@pytest.mark.usefixtures("formulas")
@pytest.mark.parametrize("returned", [-1, None, 1.5, (1, 2), True])
def test_a_wrong_formula_is_one_sentence(returned: Any) -> None:
    register_cost("my_ops.blur")(lambda node: returned)
    with pytest.raises(GraphError, match=r"the cost formula of 'my_ops\.blur\.default' returned"):
        cost(blurred())


@pytest.mark.usefixtures("formulas")
def test_a_formula_that_fails_is_named() -> None:
    register_cost("my_ops.blur")(lambda node: node["weight"])
    with pytest.raises(GraphError, match=r"the cost formula of 'my_ops\.blur\.default' failed"):
        cost(blurred())


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_packed_weights_count_their_packed_bytes() -> None:
    """int4: two weights per byte of a uint8 tensor; float8: one byte; float4: two values per element."""
    ir = IR.parse("""
        graph(x: bfloat16[4, 64], w: int32[4, 1, 32, 2], s: bfloat16[1, 32, 2], a: float8_e4m3fn[4, 64], b: float8_e4m3fn[64, 32], p: float4_e2m1fn_x2[4, 32], q: float4_e2m1fn_x2[32, 32], one: float32[]) {
          int4: bfloat16[4, 32] = aten._weight_int4pack_mm.default(self=x, mat2=w, qScaleAndZeros=s, qGroupSize=64)
          fp8: bfloat16[4, 32] = aten._scaled_mm.default(self=a, mat2=b, scale_a=one, scale_b=one, bias=None, scale_result=None, out_dtype=bfloat16, use_fast_accum=False)
          fp4: bfloat16[4, 32] = aten._scaled_mm.default(self=p, mat2=q, scale_a=one, scale_b=one, bias=None, scale_result=None, out_dtype=bfloat16, use_fast_accum=False)
          return int4, fp8, fp4
        }
    """)  # noqa: E501  # one line of the text form
    costs = cost(ir)
    assert [costs[name].macs for name in ("int4", "fp8", "fp4")] == [4 * 32 * 64] * 3
    assert costs["int4"].bytes_read == 4 * 64 * 2 + 32 * 64 // 2 + 1 * 32 * 2 * 2
    assert costs["fp8"].bytes_read == 4 * 64 + 64 * 32 + 4
    assert costs["fp4"].bytes_read == 4 * 32 + 32 * 32 + 4


def test_a_broadcast_reads_each_element_once_and_a_look_up_at_most_its_table() -> None:
    model = module(lambda self, x, ids: (x.expand(6, 5, 4) + 1, self.table(ids)), table=nn.Embedding(10, 4))
    costs = cost(captured(model, torch.randn(1, 5, 4), torch.randint(10, (100,))))
    assert costs["add"].bytes_read == 5 * 4 * 4
    assert costs["embedding"].bytes_read == 100 * 8 + 10 * 4 * 4
