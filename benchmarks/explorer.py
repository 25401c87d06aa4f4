"""Latency of the explorer in headless Chromium: first drawing, expanding a layer, search."""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import torch_ir
from benchmarks.measure import median_time, table
from benchmarks.models import Case, llama_405b, resnet50, tokens
from tests import browser

HEADER = ["graph", "nodes", "file", "time to write", "first drawing", "expand a layer", "search"]
CASES = [
    Case("ResNet-50", resnet50, lambda: {"x": torch.randn(1, 3, 224, 224)}),
    Case("Llama of 162 layers", lambda: llama_405b(162), tokens),
]
# reading the layout makes the browser finish it before the timer stops
_OPEN = """() => {
  const places = [...app.view.drawing.frames.keys()].map((id) => app.view.places.get(id));
  const closed = places.filter((place) => canOpen(place.item) && !app.view.isOpen(place));
  const start = performance.now();
  app.view.toggle(closed.reduce((one, other) => (other.item.nodes.length > one.item.nodes.length ? other : one)));
  app.view.world.getBBox();
  return performance.now() - start;
}"""
_SEARCH = """() => {
  const start = performance.now();
  app.search.input.value = "linear";
  app.search.find();
  app.search.step(-1);
  app.view.world.getBBox();
  return performance.now() - start;
}"""


def run(repeats: int = 5) -> str:
    """Return medians of several page loads, each in a new tab."""
    if browser.find() is None:
        return browser.ABSENT
    with browser.launched() as running, tempfile.TemporaryDirectory() as folder:
        return table(HEADER, [_row(case, running, Path(folder) / "page.html", repeats) for case in CASES])


def _row(case: Case, running: Any, page: Path, repeats: int) -> list[str]:
    model, inputs = case.on_meta()
    ir = torch_ir.extract_ir(model, (), kwargs=inputs)
    start = time.perf_counter()
    torch_ir.explore(ir, page)
    written = time.perf_counter() - start
    visits = [_visit(running, page) for _ in range(repeats)]
    times = [median_time([milliseconds / 1e3 for milliseconds in column]) for column in zip(*visits, strict=True)]
    size = f"{page.stat().st_size / 1e3:.0f} kB"
    return [case.name, f"{len(ir.nodes):,}", size, median_time([written]), *times]


def _visit(running: Any, page: Path) -> tuple[float, float, float]:
    """Measure milliseconds to the first drawing, to expand the largest visible module, and to find a nested node."""
    visit = browser.Visit(running, page)
    visit.page.wait_for_selector("html[data-ready]")
    ready = visit.page.evaluate("app.readyAt")
    times = ready, visit.page.evaluate(_OPEN), visit.page.evaluate(_SEARCH)
    visit.page.close()
    return times
