"""Memory plans: what they promise, in a real buffer; kept in files, refused when the graph has changed."""

import copy
import json
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import catalogue
from tests.arena_runs import ArenaRun
from tests.command_line import failure
from tests.proof import captured, captured_entry, module
from tests.test_liveness import prepared
from torch_ir import IR, GraphError, IRExecutor, optimize
from torch_ir.analysis import Bank, MemoryPlan, check_plan, liveness, memory_plan_of, plan_memory, schedule
from torch_ir.cli.dispatch import main
from torch_ir.draw import memory_picture
from torch_ir.errors import DeviceError, SerializationError
from torch_ir.formats import load_protobuf, save_protobuf
from torch_ir.ir.graph.io_tree import rebuild
from torch_ir.ir.plans.memory_plan import Place
from torch_ir.ir.regroup.functions import outline
from torch_ir.run.executor import flat_inputs

SAMPLE = ("bert", "densenet", "inception", "resnet18", "unet", "vae")
TWO = (Bank("sram", 4096, alignment=64), Bank("dram", alignment=64))


def small() -> IR:
    return captured(module(lambda self, x: (x.relu() + x.sigmoid()).tanh() * x.exp()), torch.randn(100))


def planned(ir: IR, banks: Any = TWO) -> IR:
    ir.extensions[MemoryPlan.KEY] = plan_memory(ir, banks).to_dict()
    return ir


def check_in_a_buffer(name: str, banks: tuple[Bank, ...]) -> None:
    """Every tensor is moved to its place in one real buffer per bank, as soon as its node has made it."""
    ir, model, inputs, kwargs = prepared(name)
    expected = IRExecutor(ir, model.state_dict())(*inputs, **kwargs)
    run = ArenaRun(ir, model.state_dict(), banks)
    found = rebuild(ir.output_tree, run.run(flat_inputs(ir, inputs, kwargs)), lambda leaf: leaf)
    assert run.allocated == {place.name: place.bytes for place in run.places.values() if place.bytes}
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    parts = [(part.data_ptr(), part.data_ptr() + part.nbytes) for part in run.memory.values()]
    assert any(begin <= leaf.data_ptr() < end for leaf in pytree.tree_leaves(found) for begin, end in parts)


@pytest.mark.parametrize("name", ["cnn", "mlp", "unet", "vae"])
def test_a_run_in_one_buffer_computes_the_same(name: str) -> None:
    check_in_a_buffer(name, (Bank("arena", alignment=16),))


def test_a_run_in_two_banks_computes_the_same() -> None:
    check_in_a_buffer("unet", (Bank("sram", 1 << 16, alignment=64), Bank("dram", alignment=32)))


def check_peak(name: str) -> None:
    ir = captured_entry(name)
    plan = plan_memory(ir)
    assert plan.peak == liveness(ir).peak
    assert plan.peak <= plan.used["arena"] <= 1.05 * plan.peak


@pytest.mark.parametrize("name", SAMPLE)
def test_the_arena_is_within_five_percent_of_the_peak(name: str) -> None:
    check_peak(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in catalogue.entries() if entry.name not in SAMPLE])
def test_the_arenas_of_the_whole_catalogue(name: str) -> None:
    check_peak(name)


def test_a_call_has_scratch_memory() -> None:
    ir = small()
    call = outline(ir, ir.nodes[1:4], "part")
    plan = plan_memory(ir)
    assert [place.name for place in plan.places if place.is_scratch] == [call.name]
    assert plan.used["arena"] >= liveness(ir).peak


@st.composite
def plans(draw: st.DrawFn) -> MemoryPlan:
    number = st.integers(0, 7)
    rows = draw(st.lists(st.tuples(number, number, number, number), max_size=5))
    places = [Place(f"t{at}", "a", offset, size, min(pair), max(pair)) for at, (offset, size, *pair) in enumerate(rows)]
    return MemoryPlan((Bank("a", 12, 2),), tuple(places), 8, 0)


@given(plans())
@settings(max_examples=300, deadline=None)
def test_the_check_finds_every_mistake(plan: MemoryPlan) -> None:
    """Against a table with one entry for each byte and step."""
    taken: dict[tuple[int, int], str] = {}
    is_right = all(place.offset % 2 == 0 and place.offset + place.bytes <= 12 for place in plan.places)
    for place in plan.places:
        for step in range(place.first, place.last + 1):
            for byte in range(place.offset, place.offset + place.bytes):
                is_right &= taken.setdefault((step, byte), place.name) == place.name
    try:
        check_plan(plan)
        found = True
    except GraphError:
        found = False
    assert found == is_right


def test_banks_fill_and_spill() -> None:
    plan = plan_memory(small(), TWO)
    assert 0 < plan.used["sram"] <= 4096
    assert all(place.offset % 64 == 0 for place in plan.places)
    tight = plan_memory(small(), (Bank("sram", 900, 64), Bank("dram", alignment=64)))
    assert {place.bank for place in tight.places} == {"sram", "dram"}


def test_a_bank_that_is_too_small_is_refused() -> None:
    with pytest.raises(DeviceError, match="bank 'sram' has 900 bytes, but needs 1,200 bytes"):
        plan_memory(small(), [Bank("sram", 900)])
    with pytest.raises(DeviceError, match="a different name for each"):
        plan_memory(small(), [Bank("a"), Bank("a")])
    with pytest.raises(DeviceError, match="more than 0 bytes"):
        Bank("a", 0)
    with pytest.raises(DeviceError, match="at least 1 byte"):
        Bank("a", alignment=0)


def test_open_sizes_are_named() -> None:
    ir = captured(
        module(lambda self, x: x.relu() * 2), torch.randn(4, 8), dynamic_shapes=({0: torch.export.Dim("rows")},)
    )
    with pytest.raises(GraphError, match="depend on rows; a plan needs numbers"):
        plan_memory(ir)
    plan = plan_memory(ir, sizes={"rows": 10})
    assert plan.used["arena"] == 2 * 10 * 8 * 4
    ir.extensions[MemoryPlan.KEY] = plan.to_dict()
    assert memory_plan_of(ir) == plan


@pytest.mark.parametrize("form", ["json", "text", "protobuf"])
def test_a_plan_is_kept_in_the_file(form: str, tmp_path: Path) -> None:
    ir = planned(small())
    if form == "protobuf":
        save_protobuf(ir, tmp_path / "a.pb")
        back = load_protobuf(tmp_path / "a.pb")
    else:
        back = IR.from_json(ir.to_json()) if form == "json" else IR.parse(ir.to_text())
    assert memory_plan_of(back) == plan_memory(ir, TWO)


def test_a_graph_without_a_plan() -> None:
    assert memory_plan_of(small()) is None


def _reorder(ir: IR) -> None:
    ir.nodes[0], ir.nodes[1] = ir.nodes[1], ir.nodes[0]


def _shorten(ir: IR) -> None:
    ir.graph_outputs = [ir.nodes[2].output]
    for node in ir.nodes[:2:-1]:
        ir.erase(node)


@pytest.mark.parametrize("change", [_reorder, _shorten])
def test_a_plan_for_another_graph_is_refused(change: Callable[[IR], None]) -> None:
    ir = planned(small())
    change(ir)
    ir.check()
    with pytest.raises(GraphError, match=r"the memory plan is for another graph: it differs at .*plan it again"):
        memory_plan_of(ir)


def test_optimising_drops_a_plan() -> None:
    ir = planned(captured(module(lambda self, x: (x.relu() + 0).neg().neg()), torch.randn(10)))
    better, _ = optimize(ir)
    assert MemoryPlan.KEY in ir.extensions
    assert MemoryPlan.KEY not in better.extensions


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(record: Any) -> None:
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("places", 0, "offset", to=-64), r"\$.extensions.memory_plan.places\[0\].offset: expected a num"),
        (_set("places", 0, "offset", to=1 << 70), "expected a number from 0"),
        (_set("places", 0, "offset", to=True), "expected a whole number, found True"),
        (_set("places", 0, "offset", to=3), "offset 3 of 'relu' is not a multiple of 64"),
        (_set("places", 0, "offset", to=8192), "ends at 8592 of bank 'sram', which has 4096 bytes"),
        (_set("places", 1, "offset", to=0), "'relu' and 'sigmoid' overlap in bank 'sram' at step 1"),
        (_set("places", 0, "bank", to="sarm"), r"places\[0\].bank: unknown bank 'sarm'; did you mean 'sram'\?"),
        (_set("places", 0, "last", to=9), "'relu' lives from step 0 to 9, of 6 steps"),
        (_set("places", 0, "extra", to=9), "unknown key 'extra'"),
        (_set("places", to={}), "expected a list"),
        (_set("banks", to=[]), "expected 1 to 64 banks"),
        (_set("banks", 0, "alignment", to=0), "at least 1 byte"),
        (_set("banks", 1, "name", to="sram"), "of different names"),
        (_set("steps", to=1 << 40), "expected a number from 0"),
        (_set("sizes", to={"rows": 4}), "unknown size 'rows'"),
        (_set("peak", to=7), "is for another graph"),
    ],
)  # fmt: skip
def test_a_wrong_plan_in_a_file_is_refused(change: Callable[[Any], None], message: str) -> None:
    ir = planned(small())
    change(ir.extensions[MemoryPlan.KEY])
    with pytest.raises((GraphError, SerializationError), match=message):
        memory_plan_of(ir)


def test_two_places_of_one_tensor() -> None:
    ir = planned(small())
    record = ir.extensions[MemoryPlan.KEY]
    record["places"].append(copy.deepcopy(record["places"][0]))
    with pytest.raises(GraphError, match="'relu' has two places"):
        memory_plan_of(ir)


def test_a_picture_has_every_tensor_and_escapes_names() -> None:
    ir = small()
    picture = memory_picture(plan_memory(ir), "<b>&")
    root = xml.etree.ElementTree.fromstring(picture)
    tips = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert [tip.partition(":")[0] for tip in tips] == [tensor.name for node in ir.nodes for tensor in node.outputs]
    assert "<b>" not in picture
    assert "live peak 1,200 B" in picture


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plan, check, optimise: the plan is kept, shown, and gone."""
    monkeypatch.chdir(tmp_path)
    small().save("net.json")
    words = ["memory", "net.json", "--bank", "sram=600B", "--bank", "dram", "--align", "8"]
    assert main([*words, "--reorder", "-o", "planned.json", "--picture", "plan.svg"]) == 0
    shown = capsys.readouterr().out
    assert "live peak 1.20 kB" in shown
    assert "sram" in (tmp_path / "plan.svg").read_text()
    assert main(["memory", "planned.json", "--check"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["memory", "planned.json", "--check", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    plan = memory_plan_of(IR.load("planned.json"))
    assert plan is not None
    assert record == {"used": plan.used, **plan.to_dict()}
    assert failure(capsys, "memory", "net.json", "--check").startswith("net.json has no memory plan")
    assert "must end in .svg" in failure(capsys, "memory", "net.json", "--picture", "plan.png")
    assert "add -o FILE" in failure(capsys, "memory", "net.json", "--reorder")
    assert "--check shows the plan" in failure(capsys, "memory", "net.json", "--check", "--align", "8")
    assert "is not a memory size" in failure(capsys, "memory", "net.json", "--bank", "sram=big")


def test_a_lower_peak_by_another_order() -> None:
    ir = captured_entry("inception")
    before = plan_memory(ir)
    ir.nodes = list(schedule(ir).nodes)
    assert plan_memory(ir).used["arena"] <= before.used["arena"]
