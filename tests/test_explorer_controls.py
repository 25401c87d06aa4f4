"""The controls of the explorer in a real browser: shortcuts, columns, search, runs, map, files, touch, keyboard."""

import re
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import torch_ir
from tests import browser
from tests.explored import decoder, hostile, normed
from tests.explorer_page import TIMES, box, boxes, closed, panel
from tests.graphs import mlp
from tests.proof import captured
from tests.test_changing_buffers import graph as changing
from tests.test_diff_events import Convolutions

pytestmark = pytest.mark.skipif(browser.find() is None, reason=browser.ABSENT)
SVG = "{http://www.w3.org/2000/svg}"
OUTLINE = "part => getComputedStyle(part).outlineStyle"


def key_rows(page: Any) -> list[str]:
    found: list[str] = page.locator("dialog th").all_text_contents()
    return found


def test_a_comparison_says_what_happened(shown: Any) -> None:
    """The prologue is one closed box, a folded norm is one row, and a convolution that absorbed it has changed."""
    before = captured(Convolutions(4).eval(), torch.ones(2, 4, 6, 6))
    after, report = torch_ir.optimize(before, "basic")
    page = shown(before, against=after)
    headings = page.locator(".event")
    assert headings.all_text_contents()[0] == "folded 4 batch_norm into conv2d"
    assert page.locator(".compare .set button").all_text_contents() == [
        f"{report.after.once} computed once",
        "5 changed",
        "4 removed",
    ]
    right = page.locator(".pane").nth(1)
    assert right.locator(".g-once").count() == 1
    assert right.locator(".wire").count() == 9  # none leads from the prologue
    assert right.locator(".box.s-changed").count() == 5
    assert right.locator(".s-added").count() == 0
    assert headings.nth(0).get_attribute("aria-expanded") == "false"
    headings.nth(0).click()
    assert page.locator(".differences .fold").count() == 2
    page.keyboard.press("d")
    assert panel(page)["name"] == "batch_norm"
    assert page.locator(".selected > text.title").all_text_contents() == ["batch_norm", "conv2d"]


def test_a_question_mark_lists_the_shortcuts(shown: Any) -> None:
    """Every key that does something is in the list; Escape closes it, and no key acts behind it."""
    page = shown(decoder(3))
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()
    listed = {text for keys in page.locator("dialog th").all() for text in keys.locator("kbd").all_text_contents()}
    arrows = {"ArrowUp": "↑", "ArrowDown": "↓", "ArrowLeft": "←", "ArrowRight": "→", "Escape": "Esc", "=": "+"}
    assert {arrows.get(key, key) for key in page.evaluate("Object.keys(KEYS)")} == listed
    before = boxes(page)
    page.keyboard.press("c")
    assert boxes(page) == before
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()
    page.get_by_role("button", name="keyboard shortcuts").click()
    page.get_by_role("button", name="Close").click()
    assert not page.locator("dialog").is_visible()


def test_the_focus_ring_is_for_the_keyboard(shown: Any) -> None:
    """A click into the graph after a key shows none; Tab shows one."""
    page = shown(mlp())
    page.keyboard.press("f")
    box(page, "relu").click()
    assert page.locator(".canvas").evaluate(OUTLINE) == "none"
    page.keyboard.press("Tab")
    assert page.locator(":focus").evaluate(OUTLINE) == "solid"


def test_tab_reaches_every_part_in_reading_order(shown: Any) -> None:
    """Header, modules, graph, details; each stop has a role and a name that a screen reader says."""
    page = shown(decoder(3))
    stops = []
    for _ in range(40):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate("document.activeElement.closest('header, nav, .view, .right, .edge, footer')?.className")
        )
        name = page.evaluate(
            "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent)"
        )
        assert name.strip()
    order = [stop for at, stop in enumerate(stops) if stop is not None and (not at or stops[at - 1] != stop)]
    assert order[:6] == ["", "tree", "edge", "crumbs", "view", "edge"]
    canvas = page.get_by_role("tree", name="graph Decoder")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    active = page.locator(f"#{canvas.get_attribute('aria-activedescendant')}")
    assert active.get_attribute("role") == "treeitem"
    assert "Layer" in active.get_attribute("aria-label")
    page.keyboard.press("Enter")
    assert page.locator(f"#{canvas.get_attribute('aria-activedescendant')}").get_attribute("aria-expanded") in (
        "true",
        "false",
    )
    page.keyboard.press("Escape")
    assert canvas.get_attribute("aria-activedescendant") is None


def test_matches_do_not_cover_the_details_and_none_says_so(shown: Any) -> None:
    """The list ends left of the panel, also in a small window."""
    page = shown(decoder(3))
    page.keyboard.press("/")
    page.keyboard.type("linear")
    for width in (1400, 820):
        page.set_viewport_size({"width": width, "height": 800})
        hits, details = page.locator(".hits").bounding_box(), page.locator(".right").bounding_box()
        assert hits["x"] + hits["width"] <= details["x"]
    page.locator(".search input").fill("no such thing")
    assert page.locator(".hits").inner_text() == "no node matches all of these words"
    assert page.locator(".search .count").text_content() == "0"
    page.locator(".search input").fill("")
    assert not page.locator(".hits").is_visible()


def test_columns_can_be_hidden_and_dragged(shown: Any) -> None:
    """By buttons, keys, the pointer and arrow keys; what was in the middle of the graph stays there."""
    page = shown(mlp())
    tree, right = page.locator(".tree"), page.locator(".right")
    page.keyboard.press("m")
    assert not tree.is_visible()
    page.get_by_role("button", name="details").click()
    assert not right.is_visible()
    assert page.locator(".canvas").bounding_box()["width"] > 1350
    relu, canvas = (part.bounding_box() for part in (box(page, "relu"), page.locator(".canvas")))
    assert abs(relu["x"] + relu["width"] / 2 - canvas["x"] - canvas["width"] / 2) < 12
    page.keyboard.press("m")
    page.keyboard.press("p")
    edge = page.get_by_role("separator", name="width of the details").bounding_box()
    before = right.bounding_box()["width"]
    page.mouse.move(edge["x"] + 2, edge["y"] + 100)
    page.mouse.down()
    page.mouse.move(edge["x"] - 98, edge["y"] + 100, steps=3)
    page.mouse.up()
    assert abs(right.bounding_box()["width"] - before - 100) < 3
    page.get_by_role("separator", name="width of the modules").focus()
    wide = tree.bounding_box()["width"]
    page.keyboard.press("ArrowRight")
    assert tree.bounding_box()["width"] == wide + 24


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (820, 1180)])
def test_a_phone_and_a_tablet(chromium: Any, tmp_path: Path, width: int, height: int, is_pair: bool) -> None:
    """Nothing is wider than the screen, the graph has room, and a tap opens a module."""
    path = tmp_path / "page.html"
    torch_ir.explore(normed(3), path, **({"against": decoder(3)} if is_pair else {}))
    visit = browser.Visit(chromium, path, viewport={"width": width, "height": height}, has_touch=True, is_mobile=True)
    page = visit.page
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    canvas = page.locator(".canvas").first.bounding_box()
    assert canvas["width"] > 150
    assert canvas["height"] > 120
    if not is_pair:
        page.get_by_role("button", name="Collapse").tap()
        count = len(boxes(page))
        page.locator(".box .chevron").first.tap()
        assert len(boxes(page)) > count
    assert page.locator(".right").is_visible()
    page.close()
    assert visit.wrong == []


def test_two_fingers_zoom(shown: Any) -> None:
    """Twice as far apart is twice as large, around the point between them."""
    page = shown(mlp())
    before = box(page, "relu").bounding_box()
    x, y = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
    page.locator(".canvas").evaluate(
        """(canvas, [x, y]) => {
          const send = (type, pointerId, clientX) => canvas.dispatchEvent(
            new PointerEvent(type, { pointerId, clientX, clientY: y, button: 0, bubbles: true }));
          canvas.setPointerCapture = () => {};
          send("pointerdown", 1, x - 40); send("pointerdown", 2, x + 40);
          send("pointermove", 1, x - 80); send("pointermove", 2, x + 80);
          send("pointerup", 1, x - 80); send("pointerup", 2, x + 80);
        }""",
        [x, y],
    )
    after = box(page, "relu").bounding_box()
    assert after["width"] == pytest.approx(2 * before["width"], rel=0.03)
    assert after["x"] + after["width"] / 2 == pytest.approx(x, abs=3)


def test_a_count_of_placeholders_lists_them(shown: Any) -> None:
    """The pill in the details and the sign on a closed box list the nodes, and go to the first."""
    ir = decoder(3, plain=1)
    red = {node.name for node in ir.nodes if node.origin.module.endswith("attn.q")}
    page = closed(shown(ir, placeholders=red))
    page.get_by_role("button", name="3 placeholders").click()
    assert page.locator(".hits li").count() == 3
    assert panel(page)["module"] == "layers.0.attn.q"
    page.keyboard.press("n")
    assert panel(page)["module"] == "layers.1.attn.q"
    page.keyboard.press("Escape")
    closed(page)
    page.locator(".chip.s-placeholder").first.click()
    assert page.locator(".search .count").text_content() == "1 of 3"


def test_going_to_a_node_of_one_layer_draws_that_layer(shown: Any) -> None:
    """The others stay folded; buttons draw the layer before and after; the address works the same way."""
    page = closed(shown(decoder(8, plain=1)))
    page.keyboard.press("/")
    page.keyboard.type("layers.5.mlp.up")
    page.keyboard.press("Enter")
    assert panel(page)["module"] == "layers.5.mlp.up"
    assert "layers.5" in page.locator(".frame > text").all_text_contents()
    assert page.get_by_text("unfold all").count() == 1
    page.get_by_role("button", name="the part after").click()
    assert "layers.6" in page.locator(".frame > text").all_text_contents()
    box(page, "add").first.click()
    assert panel(page)["module"].startswith("layers.6")
    page.get_by_role("button", name="unfold all").click()
    assert [name for name in boxes(page) if re.fullmatch(r"layers\.\d", name)] == [f"layers.{at}" for at in range(8)]
    assert page.get_by_role("button", name="the part after").count() == 0


def test_shares_inside_a_folded_run_are_those_of_one_part(shown: Any) -> None:
    """A closed run has the share of all of its layers; its open layer shows what one of them costs."""
    ir = decoder(4, plain=0)
    page = closed(shown(ir))
    page.get_by_role("button", name="FLOPs").click()
    assert page.locator(".share text").all_text_contents() == ["100 %"]
    page.keyboard.press("e")
    shares = [float(text.removesuffix(" %")) for text in page.locator(".share text").all_text_contents()]
    assert sum(shares) == pytest.approx(25, abs=0.5)


def test_the_map_covers_no_node_and_a_tall_graph_fits_readably(shown: Any) -> None:
    """It is beside the graph; the first press of `f` fits the width, the second all of it."""
    page = shown(normed(40))
    page.locator(".unfold").click()
    minimap, canvas = page.locator(".minimap").bounding_box(), page.locator(".canvas").bounding_box()
    assert canvas["x"] + canvas["width"] <= minimap["x"]
    scales = []
    for _ in range(3):
        page.keyboard.press("f")
        scales.append(page.evaluate("app.view.eye.k"))
    assert scales[0] >= 0.5 > scales[1]
    assert scales[2] == scales[0]
    page = shown(mlp())
    assert not page.locator(".minimap").is_visible()
    page.keyboard.press("f")
    assert page.evaluate("app.view.eye.k") == 1


def test_what_is_visible_can_be_saved(shown: Any, tmp_path: Path) -> None:
    """As SVG that contains its colours and only the visible boxes, and as PNG of twice the resolution."""
    page = shown(decoder(6, plain=1))
    page.locator(".unfold").first.click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="SVG").click()
    assert saved.value.suggested_filename == "Decoder.svg"
    saved.value.save_as(tmp_path / "seen.svg")
    tree = ElementTree.parse(tmp_path / "seen.svg")
    text = [element.text for element in tree.iter(f"{SVG}text")]
    assert "layers.0" in text
    drawn, canvas = page.locator(".place").all(), page.locator(".canvas").bounding_box()
    seen = [one for one in drawn if one.bounding_box()["y"] < canvas["y"] + canvas["height"]]
    assert len(seen) < len(drawn) or text.count("layers.5") == 1
    fills = {element.get("fill") for kind in ("rect", "text") for element in tree.iter(f"{SVG}{kind}")}
    assert len(fills) > 4
    assert all(re.fullmatch(r"rgba?\(\d+, \d+, \d+(, [\d.]+)?\)", fill or "") for fill in fills), fills
    with page.expect_download() as saved:
        page.get_by_role("button", name="PNG").click()
    saved.value.save_as(tmp_path / "seen.png")
    data = (tmp_path / "seen.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert width == pytest.approx(2 * canvas["width"], abs=2)
    assert height == pytest.approx(2 * canvas["height"], abs=2)


def test_a_saved_picture_of_hostile_names_is_only_text(shown: Any, tmp_path: Path) -> None:
    """Names are escaped, so that the file has no script and no image."""
    page = shown(hostile())
    with page.expect_download() as saved:
        page.keyboard.press("s")
    saved.value.save_as(tmp_path / "hostile.svg")
    names = {element.tag.rpartition("}")[2] for element in ElementTree.parse(tmp_path / "hostile.svg").iter()}
    assert names <= {"svg", "g", "rect", "text", "path", "defs", "marker", "title"}


def test_a_quantised_layer_shows_its_bytes(shown: Any) -> None:
    """Of a run: the quantised weight that it reads; what is computed once has its own costs and no share."""
    model = nn.Sequential(nn.Sequential(nn.Linear(16, 8)), nn.ReLU()).eval()
    ir, _ = torch_ir.quantize(captured(model, torch.ones(2, 16)), "int8")
    page = shown(ir)
    assert page.get_by_text(re.compile("quantised to 128 B of int8$")).count() == 1
    assert page.get_by_text("Cost of one run").count() == 1
    page.keyboard.press("/")
    page.keyboard.type("quantize_per_channel")
    page.keyboard.press("Enter")
    assert page.get_by_text("Cost when weights are bound").count() == 1
    page.get_by_role("button", name="Bytes moved").click()
    assert f"int8 8{TIMES}16" in box(page, "quantize_per_channel").text_content()
    assert box(page, "quantize_per_channel").locator(".share").count() == 0
    assert box(page, "dequantize_per_channel").locator(".share").count() == 1


def test_a_changed_buffer_is_named_by_its_key(shown: Any) -> None:
    """In the graph, in the list of what a run changes, and at the node that computes its new value."""
    page = shown(changing())
    assert "updates steps" in page.locator(".port.out text").all_text_contents()
    assert panel(page)["steps"] == "add"
    page.locator(".panel").get_by_role("button", name="add").click()
    assert "new value of steps" in page.locator(".panel").inner_text()
