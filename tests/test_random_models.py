"""Random models: the extracted, saved, loaded and run graph is bit-identical to the model."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.random_models import BLOCKS, Recipe, built, drawn, judged, reproduction, shrunk
from tests.random_models.differential import KNOWN, Compared, is_near
from tests.random_models.equal import apart
from tests.random_models.refusals import REASONS, reason_of
from tests.random_models.sweep import ENGINES, MODELS, in_engine, swept

pytestmark = pytest.mark.usefixtures("_one_thread")
REGRESSIONS = json.loads((Path(__file__).parent / "data" / "regressions" / "models.json").read_text(encoding="utf-8"))
_CHUNK = 50  # models of one slow test


@pytest.mark.parametrize("record", REGRESSIONS, ids=lambda record: record["about"])
def test_what_was_wrong_once(record: dict[str, object]) -> None:
    """The smallest models of faults that were found are captured, and equal eager in everything."""
    verdict = judged(Recipe.of({name: value for name, value in record.items() if name != "about"}))
    assert (verdict.fault, verdict.refusal) == ("", "")


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (2, 9)], ids=["thorough", "quick"])
def test_a_sample_equals_eager(start: int, stop: int) -> None:
    """Results, nesting, changed buffers and inputs over two calls; files, both capture methods; no new refusals."""
    check(range(start, stop), thorough=start == 0)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, MODELS, _CHUNK))
def test_a_thousand_equal_eager(start: int) -> None:
    """Likewise, with verification, every level of passes, and the ways back to torch and Python."""
    check(range(start, start + _CHUNK), thorough=True)


def check(seeds: range, *, thorough: bool) -> None:
    found = swept(seeds, thorough=thorough)
    assert not found.faults, "\n".join(found.faults)
    assert set(found.refused) <= set(REASONS), found.refused


# -- other engines ----------------------------------------------------------------------------------------------------


def test_a_sample_in_onnx_runtime() -> None:
    """ONNX Runtime equals eager, up to rounding."""
    assert not wrong("onnxruntime", range(100_000, 100_004))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "start"), [(name, at) for name, count in ENGINES.items() for at in range(0, count, 20)]
)
def test_many_in_other_engines(engine: str, start: int) -> None:
    """Likewise, of ONNX Runtime and Inductor."""
    assert not wrong(engine, range(100_000 + start, 100_020 + start))


def wrong(engine: str, seeds: range) -> dict[int, Compared]:
    found = {seed: in_engine(seed, engine) for seed in seeds}
    return {seed: one for seed, one in found.items() if one.kind == "apart"}


def test_rounding_is_told_from_a_difference() -> None:
    """An engine may be off as far as a rounding of the inputs moves the model; whole numbers, where that moves them."""
    x = torch.tensor([1.0, 2.0])
    assert is_near(x, x + 1e-3, [x + 1e-3])
    assert not is_near(x, x + 1e-3, [x + 1e-6])
    assert not is_near(x, x / 0, [x + 1e-3])
    whole = torch.tensor([1, 2])
    assert is_near(whole, whole + 1, [whole + 1])
    assert not is_near(whole, whole + 1, [whole])


def test_what_engines_do_otherwise_is_named() -> None:
    """Each block that is excluded from an engine exists, and has a reason."""
    assert all(name in BLOCKS and reason for blocks in KNOWN.values() for name, reason in blocks.items())


# -- the generator itself ---------------------------------------------------------------------------------------------


def test_there_are_many_blocks() -> None:
    """Models are drawn out of more than a hundred blocks of six families."""
    assert len(BLOCKS) >= 150
    families = {"arithmetic", "attention", "layers", "shapes", "state", "structure"}
    assert {block.family for block in BLOCKS.values()} == families


def test_a_seed_is_a_model() -> None:
    """The same seed yields the same recipe, which round-trips through JSON, and the same weights."""
    recipe = drawn(5)
    assert recipe == drawn(5) == Recipe.of(json.loads(json.dumps(recipe.record())))
    one, other = built(recipe).model.state_dict(), built(recipe).model.state_dict()
    assert not apart(dict(one), dict(other))


def test_a_difference_is_seen() -> None:
    """Bits, signs of zeros, dtypes, shapes and nesting count; NaN equals NaN."""
    x = torch.tensor([0.0, float("nan")])
    assert not apart({"a": (x, 1)}, {"a": (x.clone(), 1)})
    assert apart(x, -x)
    assert apart(x, x.double())
    assert apart(x, x[None])
    assert apart((x,), [x])
    assert apart({"a": x}, {"b": x})
    assert apart(1, 1.0)


def test_a_fault_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that the executor gets wrong shows, and the model shrinks to the block that calls it."""
    recipe = Recipe(0, ("float32[2, 4]",), (("linear", 1), ("tower", 2), ("relu6", 3), ("tanh", 4)), call="dict")

    def fails(one: Recipe) -> bool:
        return "executed" in judged(one, roads=False, thorough=False).fault

    assert not fails(recipe)
    _spoil(monkeypatch)
    least = shrunk(recipe, fails)
    assert (least.steps, least.call) == ((("relu6", 3),), "plain")
    assert "relu6" in reproduction(least)


def _spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_ir.ops import registry

    monkeypatch.setitem(registry._EXECUTORS, "aten.relu6.default", lambda inputs, attrs: [inputs[0] * 2])


def test_reasons_of_refusals() -> None:
    """A refusal is recognised by words of its message; any other is new."""
    assert reason_of("cannot capture Net: a size cannot vary as asked: batch is always 3") in REASONS
    assert reason_of("cannot capture Net: because") not in REASONS


def test_buffers_assigned_anew_in_a_submodule() -> None:
    """A tensor assigned to a buffer is its new value; results that alias the old one are unchanged."""
    from tests.proof import proved

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))
            self.register_buffer("memo", torch.zeros(0), persistent=False)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            old, part = self.count, self.count[:1]
            self.count = self.count + 2
            self.memo = torch.zeros(3)  # of another size: no state
            return x + self.count, self.count, old, part

    for model in (Counts(), nn.Sequential(Counts())):
        ir = proved(model.eval(), torch.ones(2))
        assert [target.key for target, _ in ir.mutations] == [next(iter(model.state_dict()))]
