"""The explorer in Firefox: it loads without an error, walks, searches, compares and saves, as in Chromium."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_ir
from tests import firefox
from tests.explored import HOSTILE, decoder, hostile
from tests.proof import captured
from tests.test_diff_events import Convolutions

pytestmark = pytest.mark.skipif(firefox.find() is None, reason=firefox.ABSENT)
TITLES = "[...document.querySelectorAll('.place > text.title')].map((text) => text.textContent)"
ENTER, DOWN = "\ue007", "\ue015"


@pytest.fixture(scope="module")
def fox() -> Iterator[firefox.Firefox]:
    with firefox.launched() as running:
        yield running
        assert running.wrong == []


def test_a_page_opens_and_keys_walk(fox: firefox.Firefox, tmp_path: Path) -> None:
    """Equal layers are one box; keys close, open, search and go; the columns hide."""
    torch_ir.explore(decoder(8, plain=1), tmp_path / "page.html")
    fox.open(tmp_path / "page.html")
    fox.press("c")
    assert fox.evaluate(TITLES) == ["layers.0\N{EN DASH}7  \N{MULTIPLICATION SIGN}8"]
    fox.press(DOWN, ENTER)
    assert len(fox.evaluate(TITLES)) == 5
    fox.press("/", *"layers.5.mlp.up", ENTER)
    assert fox.evaluate("document.querySelector('.selected > text.title').textContent") == "linear"
    assert "layers.5" in fox.evaluate("[...document.querySelectorAll('.frame > text')].map((text) => text.textContent)")
    fox.evaluate("app.search.close()")
    fox.press("m")
    assert fox.evaluate("app.panels.columns.left.hidden") is True
    fox.press("?")
    assert fox.evaluate("app.help.open") is True
    fox.evaluate("app.help.close()")


def test_two_graphs_and_a_saved_picture(fox: firefox.Firefox, tmp_path: Path) -> None:
    """What happened is listed, and the visible part is SVG with its colours, and PNG."""
    before = captured(Convolutions(4).eval(), torch.ones(2, 4, 6, 6))
    after, _ = torch_ir.optimize(before, "basic")
    torch_ir.explore(before, tmp_path / "pair.html", against=after)
    fox.open(tmp_path / "pair.html")
    headings = fox.evaluate("[...document.querySelectorAll('.event')].map((row) => row.textContent)")
    assert headings[0] == "folded 4 batch_norm into conv2d"
    assert fox.evaluate("document.querySelectorAll('.pane:last-child .wire').length") == 9
    picture = fox.evaluate("pictureOf(app.view)")
    assert "batch_norm" in picture
    assert "var(" not in picture
    assert fox.evaluate("pixelsOf(pictureOf(app.view)).then((blob) => [blob.type, blob.size > 1000])") == [
        "image/png",
        True,
    ]


def test_hostile_names_are_only_text(fox: firefox.Firefox, tmp_path: Path) -> None:
    """Nothing that a model is called runs, or becomes an element."""
    torch_ir.explore(hostile(), tmp_path / "hostile.html")
    fox.open(tmp_path / "hostile.html")
    assert fox.evaluate("document.querySelectorAll('img').length") == 0
    assert fox.evaluate("document.querySelectorAll('script').length") == 2
    assert fox.evaluate("document.title").startswith(HOSTILE)


def test_a_phone(fox: firefox.Firefox, tmp_path: Path) -> None:
    """Nothing is wider than the screen."""
    torch_ir.explore(decoder(3), tmp_path / "page.html")
    fox.open(tmp_path / "page.html", 450, 844)
    assert fox.evaluate("document.documentElement.scrollWidth") <= 450
    fox.screenshot(tmp_path / "phone.png")
