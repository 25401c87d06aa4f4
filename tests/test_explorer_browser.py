"""The explorer in a real browser: it loads, expands, searches, describes, colours and compares."""

import re
from pathlib import Path
from typing import Any

import pytest

import torch_ir
from tests import browser
from tests.explored import HOSTILE, asserting, decoder, half_asserted, hostile, normed, sharded, trained, with_call
from tests.explorer_page import TIMES, box, boxes, closed, fill, panel
from tests.graphs import mlp, tensor, weight
from torch_ir.analysis import cost
from torch_ir.ir import IR, OpNode, Origin, Symbol

pytestmark = pytest.mark.skipif(browser.find() is None, reason=browser.ABSENT)
LAYERS = 4


def test_a_page_opens_collapsed(shown: Any) -> None:
    """Equal layers are one box with a count; the modules are at the left."""
    page = closed(shown(decoder(LAYERS)))
    assert boxes(page) == [f"layers.0\N{EN DASH}{LAYERS - 1}  {TIMES}{LAYERS}"]
    assert "Decoder" in page.locator(".tree").inner_text()
    assert page.title() == "Decoder — torch-ir"


def test_double_clicks_open_and_close_a_module_in_place(shown: Any) -> None:
    """The head of the module stays under the pointer."""
    page = closed(shown(decoder(LAYERS, plain=1)))
    box(page, "layers.0").dblclick(position={"x": 60, "y": 12})
    assert boxes(page)[1:] == ["attn", "add", "mlp", "add"]
    before = box(page, "attn").bounding_box()
    box(page, "attn").dblclick(position={"x": 60, "y": 12})
    assert boxes(page)[1:9] == ["attn", "linear", "linear", "linear", "mul", "add", "mul", "add"]
    assert abs(box(page, "attn").bounding_box()["y"] - before["y"]) < 2
    box(page, "attn").dblclick(position={"x": 60, "y": 12})
    assert boxes(page)[1:] == ["attn", "add", "mlp", "add"]


def test_backward_is_beside_forward(shown: Any) -> None:
    """Forward, backward and update are not one strip; links across join a box's right to another's left."""
    page = closed(shown(trained()))
    places = {name: box(page, name).bounding_box() for name in ("one", "two", "backward", "optimizer")}
    ends = {name: place["x"] + place["width"] for name, place in places.items()}
    assert max(ends["one"], ends["two"]) < min(places["backward"]["x"], places["optimizer"]["x"])
    assert places["backward"]["y"] < places["two"]["y"]
    box(page, "backward").dblclick(position={"x": 60, "y": 12})
    assert {"two", "one"} <= set(boxes(page)[boxes(page).index("backward") + 1 :])


def test_a_run_can_be_unfolded(shown: Any) -> None:
    """All parts are drawn then, and a value that all of them read is named at each but the first."""
    page = closed(shown(decoder(6, plain=1)))
    box(page, "layers.0").dblclick(position={"x": 60, "y": 12})
    page.locator(".unfold").click()
    assert boxes(page)[1:] == [f"layers.{at}" for at in range(6)]
    assert page.locator(".tag").count() == 5
    page.locator(".unfold").click()
    assert len(boxes(page)) == 5


def test_search_opens_what_is_around_a_hit_and_goes_there(shown: Any) -> None:
    """Nodes are found by module, operator, shape and weight; Enter goes to the next match."""
    page = closed(shown(decoder(LAYERS)))
    page.keyboard.press("/")
    page.keyboard.type("layers.2.mlp.down.weight")
    assert page.locator(".hits li").count() == 1
    page.keyboard.press("Enter")
    assert page.locator(".selected > text.title").text_content() == "linear"
    assert panel(page)["module"] == "layers.2.mlp.down"
    place, canvas = page.locator(".selected").bounding_box(), page.locator(".canvas").bounding_box()
    assert abs(place["x"] + place["width"] / 2 - canvas["x"] - canvas["width"] / 2) < 2
    assert abs(place["y"] + place["height"] / 2 - canvas["y"] - canvas["height"] / 2) < 2
    page.locator(".search input").fill("linear 4x8")
    assert page.locator(".search .count").text_content() == str(5 * LAYERS)
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.locator(".search .count").text_content() == f"2 of {5 * LAYERS}"
    page.locator(".hits button").first.click()
    page.keyboard.press("Escape")
    assert (page.locator(".hits").is_visible(), page.locator(".selected").count()) == (False, 1)


def test_the_panel_tells_what_the_analysis_knows(shown: Any) -> None:
    """FLOPs, bytes, shapes, weights and the line of the model, as Python has them."""
    ir = decoder(LAYERS)
    page = shown(ir)
    node = next(node for node in ir.nodes if node.origin.module == "layers.1.attn.q")
    page.keyboard.press("/")
    page.keyboard.type("layers.1.attn.q")
    page.keyboard.press("Enter")
    told, row = panel(page), cost(ir)[node.name]
    titles = [cell.get_attribute("title") for cell in page.locator(".costs td span").all()]
    assert titles == [f"{amount:,}" for amount in (row.macs, row.flops, row.bytes_read, row.bytes_written)]
    assert told["weight"] == f"layers.1.attn.q.weightfloat32 8{TIMES}8"
    assert told["input"].endswith(f"float32 4{TIMES}8")
    assert (told["source"], told["class"], told["bias"]) == ("model.py:11", "Linear", "None")


def test_costs_of_open_sizes_are_short_and_fit(shown: Any) -> None:
    """An expression has short numbers and powers, the whole of it to point at, and stays inside the panel."""
    x, w, made = tensor("x", "batch", "batch", 64), weight("w", 32, 64), tensor("y", "batch", "batch", 32)
    names, origin = ["input", "weight"], Origin("heads.3", 0, "Linear")
    node = OpNode("y", "aten.linear.default", [x, w], [made], {"bias": None}, args=names, origin=origin)
    page = shown(IR([node], [x], [made], params=[w], symbols=[Symbol("batch", 1, 64, x, 0)]))
    flops = page.locator(".costs td span").nth(1)
    assert (flops.text_content(), flops.get_attribute("title")) == ("4.10k·batch²", "4096*batch*batch")
    assert page.locator(".panel").evaluate("panel => panel.scrollWidth <= panel.clientWidth")
    assert "heads.3" in box(page, "linear").locator("> text").all_text_contents()  # not `3` alone


def test_heat_colours_by_cost(shown: Any) -> None:
    """The box with most FLOPs is red, one without is not, and a share is written on it."""
    page = shown(mlp())
    assert fill(page, "linear, fc1") != fill(page, "relu")
    page.get_by_role("button", name="FLOPs").click()
    plain, hot = fill(page, "relu"), fill(page, "linear, fc1")
    assert plain != hot
    assert page.locator(".share text").all_text_contents() == ["67 %", "33 %"]
    page.get_by_role("button", name="Op family").click()
    assert page.locator(".share").count() == 0


def test_placeholders_are_red_and_say_so(shown: Any) -> None:
    """By colour, by symbol, and by a text for screen readers."""
    page = shown(mlp(), placeholders={"relu"})
    assert page.locator(".chip.s-placeholder text").all_text_contents() == ["!"]
    assert "placeholder" in box(page, "relu").get_attribute("aria-label")
    assert "placeholder" in page.locator(".legend").inner_text()
    red = page.evaluate("getComputedStyle(document.querySelector('.s-placeholder > .card')).stroke")
    assert red == "rgb(198, 40, 40)"


def test_functions_can_be_entered(shown: Any) -> None:
    """A call expands to its body, and search finds nodes inside."""
    page = shown(with_call())
    box(page, "call").dblclick(position={"x": 40, "y": 12})
    assert boxes(page) == ["neg", "call", "relu", "tanh"]
    page.reload()
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("/")
    page.keyboard.type("tanh")
    page.keyboard.press("Enter")
    assert page.locator(".selected > text.title").text_content() == "tanh"


def test_the_address_may_name_a_module_or_a_node(shown: Any) -> None:
    """`page.html#layers.2.mlp` opens there; an unknown name is ignored."""
    page = shown(decoder(LAYERS))
    for name, title in (("layers.2.mlp", "mlp"), ("linear_0", "linear")):
        page.evaluate("name => { location.hash = name; }", name)
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert page.locator(".selected > text.title").text_content() == title
    page.evaluate("location.hash = '%'")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator(".selected").count() == 0


def test_many_values_that_come_in_together_are_one(shown: Any) -> None:
    """The caches of all layers are one label, not a row of them; a few values have one each."""
    many = [tensor(f"cache_{at}", 2, 3) for at in range(9)]
    made = tensor("cat", 18, 3)
    args = [f"tensors.{at}" for at in range(9)]
    page = shown(IR([OpNode("cat", "aten.cat.default", many, [made], {"dim": 0}, args=args)], many, [made]))
    assert page.locator(".port.in text").all_text_contents() == ["cache_0 and 8 more"]
    assert page.locator(".panel summary").count() == 0
    page = shown(mlp())
    assert page.locator(".port.in text").all_text_contents() == [f"x 1{TIMES}4"]


def test_a_click_on_a_value_goes_to_its_maker(shown: Any) -> None:
    """An input of a module links to its producer."""
    page = closed(shown(decoder(LAYERS, plain=1)))
    box(page, "layers.0").dblclick(position={"x": 60, "y": 12})
    box(page, "mlp").dblclick(position={"x": 40, "y": 12})
    box(page, "mlp").locator(".port.in").click()
    assert page.locator(".selected > text.title").text_content() == "add"


def test_entry_points_can_be_chosen(shown: Any) -> None:
    """A file with `decode` beside the graph shows either."""
    ir = mlp()
    ir.functions["decode"] = with_call().functions["body"]
    page = shown(ir)
    assert boxes(page) == ["linear", "relu", "linear"]
    assert page.locator("header option").all_text_contents() == ["prefill", "decode"]
    page.get_by_label("entry point").select_option("decode")
    assert boxes(page) == ["relu", "tanh"]


def test_keys_walk_along_the_graph(shown: Any) -> None:
    """Down goes to a consumer, up to the producer, Enter expands, Escape deselects."""
    page = shown(mlp())
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert panel(page)["name"] == "linear_1"
    page.keyboard.press("ArrowUp")
    assert panel(page)["name"] == "relu"
    page.keyboard.press("Escape")
    assert page.locator(".selected").count() == 0
    page = closed(shown(decoder(LAYERS)))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert len(boxes(page)) == 5


def test_the_wheel_zooms_where_the_pointer_is_and_a_drag_pans(shown: Any) -> None:
    """The point under the pointer stays fixed."""
    page = shown(mlp())
    before = box(page, "relu").bounding_box()
    x, y = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)
    after = box(page, "relu").bounding_box()
    assert after["width"] > 1.3 * before["width"]
    assert abs(after["x"] + after["width"] / 2 - x) < 3
    page.mouse.down()
    page.mouse.move(x + 80, y + 40, steps=4)
    page.mouse.up()
    moved = box(page, "relu").bounding_box()
    assert abs(moved["x"] - after["x"] - 80) < 2
    assert page.locator(".selected").count() == 0


def test_two_graphs_side_by_side(shown: Any) -> None:
    """Differences are marked and listed; a selection on one side is shown on the other."""
    before, after = mlp(), mlp()
    after.nodes[1].op_type = "aten.tanh.default"
    page = shown(before, against=after, titles=("before.json", "after.json"))
    assert page.locator(".pane h1").all_text_contents() == ["before.json", "after.json"]
    assert page.locator(".pane").nth(0).locator(".chip text").all_text_contents()[0] == "\N{MINUS SIGN}"
    assert "+" in page.locator(".pane").nth(1).locator(".chip text").all_text_contents()
    assert page.locator(".differences li").count() >= 2
    page.locator(".pane").nth(0).locator('.place[aria-label^="linear, fc1"]').click()
    assert page.locator(".selected > text.title").all_text_contents() == ["linear", "linear"]
    page.get_by_role("button", name="1 added").click()
    assert page.locator(".differences b").all_text_contents() == ["tanh"]
    page.keyboard.press("d")
    assert panel(page)["name"] == "relu"
    assert "added" in page.locator(".panel").inner_text()


def test_the_same_difference_in_every_layer_is_one_row(shown: Any) -> None:
    """It shows count and place, expands to a row for each, and is one stop for the keys until then."""
    before, after = normed(8), normed(8)
    for node in after.nodes:
        if node.op_type == "aten.mul.Tensor":
            node.op_type = "aten.div.Tensor"
    page = shown(before, against=after)
    page.get_by_role("button", name="8 added").click()
    assert page.locator(".differences > li span").all_text_contents() == ["8 times in layers.*.norm"]
    page.get_by_role("button", name="each of 8").click()
    parts = page.locator(".fold li")
    assert parts.all_text_contents() == [f"layers.{at}.norm" for at in range(8)]
    parts.nth(5).get_by_role("button").click()
    assert panel(page)["module"] == "layers.5.norm"
    page.get_by_role("button", name="each of 8").click()
    for _ in range(2):
        page.keyboard.press("d")
        assert panel(page)["module"] == "layers.0.norm"


def test_what_comes_twice_in_a_layer_is_two_rows(shown: Any) -> None:
    """Equal changes of different places are not one: each row is one place of the layer."""
    after = decoder(3, plain=2)
    for node in after.nodes:
        if node.origin.module.endswith("mlp"):
            node.op_type = "aten.div.Tensor"
    page = shown(decoder(3, plain=2), against=after)
    page.get_by_role("button", name="6 added").click()
    assert page.locator(".differences > li span").all_text_contents() == ["3 times in layers.*.mlp"] * 2


def test_assertions_are_hidden_until_asked_for(shown: Any) -> None:
    """Neither assertions nor their private inputs are drawn; the page counts them, and a search finds them."""
    page = shown(asserting())
    assert boxes(page) == ["relu", "neg"]
    assert page.locator(".wire").count() == 3
    assert "4 assertions hidden" in page.locator(".legend").inner_text()
    assert "4 assertions hidden" in page.locator(".panel").inner_text()
    page.locator(".legend").get_by_role("button", name="show assertions").click()
    assert boxes(page) == ["gt", "all", "_assert_async", "relu", "neg", "_assert_tensor_metadata"]
    page.keyboard.press("a")
    assert boxes(page) == ["relu", "neg"]
    page.keyboard.press("/")
    page.keyboard.type("_assert_async")
    page.keyboard.press("Enter")
    assert page.locator(".selected > text.title").text_content() == "_assert_async"
    assert "assertions" not in shown(mlp()).locator("body").inner_text()
    page = shown(half_asserted())
    page.locator(".unfold").click()
    page.keyboard.press("e")
    assert page.locator(".frame .frame").locator(".port.out").count() == 3


def test_a_sharded_graph_shows_mesh_placements_and_what_is_sent(shown: Any) -> None:
    """In the header, in the panel, on boxes and links; collectives have a colour, and bytes sent are a heat."""
    ir = sharded()
    page = shown(ir)
    assert page.locator("header .mesh").text_content() == "mesh tp = 2"
    assert "communication" in page.locator(".legend").inner_text()
    assert fill(page, "all_reduce") == fill(page, "wait_tensor") != fill(page, "linear")
    assert "partial(sum)" in box(page, "linear").locator("> text").all_text_contents()
    assert f"linear: float32 4{TIMES}8 on partial(sum)" in page.locator(".wire title").all_text_contents()
    box(page, "linear").click()
    assert panel(page)["weight"] == f"fc.weightfloat32 8{TIMES}8on shard(1)"
    page.get_by_role("button", name="Bytes sent").click()
    assert page.locator(".share text").all_text_contents() == ["100 %"]
    box(page, "all_reduce").click()
    assert panel(page)["bytes sent"] == f"{cost(ir).communication} B 100 %"
    assert "bytes sent" not in panel(shown(mlp()))


def test_a_closed_group_tells_what_it_sends(shown: Any) -> None:
    """Beside its operators and FLOPs."""
    page = closed(shown(sharded()))
    assert f"{cost(sharded()).communication} B sent" in box(page, "fc").inner_html()


def test_a_value_that_a_group_passes_on_is_dashed(shown: Any) -> None:
    """A residual that a norm reads through an idle cast comes from its producer; in an open norm, from its port."""
    page = closed(shown(normed(3)))
    box(page, "layers.0").dblclick(position={"x": 60, "y": 12})
    assert page.locator(".wire.unchanged").count() == 1
    assert page.locator(".wire.unchanged title").text_content().endswith("passed on unchanged by norm")
    assert page.locator(".key.unchanged").is_visible()
    box(page, "norm").dblclick(position={"x": 60, "y": 12})
    ports = box(page, "norm").locator(".port.out")
    (made,) = [port.bounding_box() for port in ports.all() if "to_0" in port.text_content()]
    start = page.locator(".wire.unchanged .line").evaluate(
        "line => line.getPointAtLength(0).matrixTransform(line.getScreenCTM()).x"
    )
    assert abs(made["x"] + made["width"] / 2 - start) < 1
    assert {port.bounding_box()["y"] for port in ports.all()} == {made["y"]}
    assert not shown(mlp()).locator(".key.unchanged").is_visible()


def test_every_control_has_a_name(shown: Any) -> None:
    """For screen readers; elements hidden from them have none."""
    ir = asserting()
    ir.functions["decode"] = mlp()
    page = shown(ir, against=mlp())
    for role in ("button", "combobox", "searchbox"):
        controls = page.get_by_role(role)
        assert controls.count() > 0
        assert page.get_by_role(role, name=re.compile(r"\w|\d")).count() == controls.count()


@pytest.mark.parametrize("size", [(1280, 800), (800, 600)])
def test_nothing_is_cut_off_in_small_windows(chromium: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    """Buttons and texts of header, lists and panel stay inside the window, and beside each other."""
    path = tmp_path / "page.html"
    torch_ir.explore(sharded(), path, against=normed(8))
    visit = browser.Visit(chromium, path, viewport={"width": size[0], "height": size[1]})
    visit.page.wait_for_selector("html[data-ready]")
    for place in ("header", ".compare", ".panel", "footer"):
        assert visit.page.locator(place).evaluate("part => part.scrollWidth <= part.clientWidth"), place
    visit.page.close()
    assert visit.wrong == []


def test_hostile_names_are_only_text(shown: Any) -> None:
    """Nothing that a model is called runs, or becomes an element; it is shown as it is."""
    page = shown(hostile())
    page.keyboard.press("e")
    page.locator(".place.box").first.click()
    assert HOSTILE in page.locator(".panel").inner_text()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.title().startswith(HOSTILE)


def test_dark_and_light(shown: Any) -> None:
    """The system's setting, until the user changes it."""
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = shown(mlp()), shown(mlp(), scheme="dark")
    assert light.evaluate(ground) != dark.evaluate(ground)
    dark.get_by_role("button", name="light or dark").click()
    assert light.evaluate(ground) == dark.evaluate(ground)


def test_a_graph_without_nodes(shown: Any) -> None:
    """An empty page, without errors."""
    page = shown(IR([], [], []))
    page.keyboard.press("f")
    page.keyboard.press("ArrowDown")
    assert boxes(page) == []


@pytest.mark.parametrize("layers", [64, pytest.param(260, marks=pytest.mark.slow)])
def test_a_deep_model(shown: Any, layers: int) -> None:
    """It opens as a few boxes; any of its nodes, 10,000 in 260 layers, is one search away."""
    ir = decoder(layers)
    assert len(ir.nodes) > 39 * layers
    page = shown(ir)
    assert len(boxes(page)) < 30
    page.keyboard.press("/")
    page.keyboard.type(f"layers.{layers - 1}.mlp.down")
    page.keyboard.press("Enter")
    assert panel(page)["module"] == f"layers.{layers - 1}.mlp.down"
    assert page.locator(".frame > text.plain.dim").all_text_contents().count(f"layers.{layers - 1}") == 1
    assert page.locator(".place").count() < 100  # the other layers stay folded
