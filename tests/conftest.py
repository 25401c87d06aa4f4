"""Fixtures and options of all tests: the surroundings of a run, reports of the whole-catalogue test, slow sweeps."""

import gc
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import browser
from tests.forking import forked_programs
from torch_ir import IR, explore

if TYPE_CHECKING:  # it imports torch
    from torch_ir import LocalRanks

# Before anything imports torch, and in the environment of every process that a test starts. Threads of OpenMP that wait
# do not spin: two workers with two threads each on two cores would take several times as long.
_SURROUNDINGS = {"OMP_WAIT_POLICY": "passive", "LC_ALL": "C.UTF-8"}
_FOREIGN = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "LANGUAGE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
for _name in _FOREIGN:
    os.environ.pop(_name, None)
os.environ.update(_SURROUNDINGS)
os.umask(0o022)
# Several hundred processes would each compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A worker holds more than a million objects of imported modules; with Python's 700, collections take twice the time.
gc.set_threshold(10_000, 10, 10)
_SHARED = pytest.StashKey[Path | None]()  # the folder of forked programs for all workers


def pytest_configure(config: pytest.Config) -> None:
    """Use folders of this run only where the user's home, or the checkout, cannot be written to."""
    places = {"HOME": os.path.expanduser("~"), "HYPOTHESIS_STORAGE_DIRECTORY": str(config.rootpath)}
    for name, checked in places.items():
        place = os.environ.get(name, checked)  # a worker has that of the process that started it
        if not os.access(place, os.W_OK):
            folder = tempfile.TemporaryDirectory(prefix="torch_ir-tests-")
            config.add_cleanup(folder.cleanup)
            os.environ[name] = folder.name


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Programs that a test starts can be interrupted and hung up, even where `nohup make test &` cannot be."""
    numbers = [getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM") if hasattr(signal, name)]
    usual = dict.fromkeys(numbers, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Compute with one thread: tensors of a few elements take several times as long with two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a cache for this run only, which the workers share; never read the user's."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["TORCH_IR_CACHE"] = str(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let all workers of xdist fork their programs from one process."""
    if _SHARED not in node.config.stash:
        running = ExitStack()
        node.config.stash[_SHARED] = running.enter_context(forked_programs())
        node.config.add_cleanup(running.close)
    node.workerinput["programs"] = str(node.config.stash[_SHARED] or "")


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    """A folder with a `torch-ir` that is forked, and so starts in milliseconds; None where that cannot be."""
    if hasattr(request.config, "workerinput"):
        shared = request.config.workerinput["programs"]
        yield Path(shared) if shared else None
        return
    with forked_programs() as folder:
        yield folder


@pytest.fixture(scope="session")
def _started_ranks() -> Iterator[dict[int, "LocalRanks"]]:
    started: dict[int, LocalRanks] = {}
    yield started
    for each in started.values():
        each.close()


@pytest.fixture
def _forked_python(request: pytest.FixtureRequest, programs: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the ranks, servers, scripts and modules of tests that a test starts; not where sweeps are in full."""
    if programs and not request.config.getoption("--run-slow"):
        monkeypatch.setattr(sys, "executable", str(programs / "python"))


@pytest.fixture
def running_ranks(_started_ranks: dict[int, "LocalRanks"], _forked_python: None) -> Callable[[int], "LocalRanks"]:
    """So many rank processes for all tests of this process; others if an error has ended those."""
    from torch_ir import LocalRanks

    def running(count: int) -> LocalRanks:
        found = _started_ranks.get(count)
        if found is not None and not all(server.is_alive for server in found._servers):
            found.close()
            found = None
        _started_ranks[count] = found or LocalRanks(count)
        return _started_ranks[count]

    return running


@pytest.fixture
def ranks(running_ranks: Callable[[int], "LocalRanks"]) -> "LocalRanks":
    return running_ranks(4)


@pytest.fixture
def executors() -> Iterator[Callable[[str, Callable[..., Any]], None]]:
    """`executors(op_type, function)` registers an executor until the test ends."""
    from torch_ir.ops import register_executor
    from torch_ir.ops.registry import unregister

    names: list[str] = []

    def register(name: str, function: Callable[..., Any]) -> None:
        names.append(name)
        register_executor(name)(function)

    yield register
    for name in names:
        unregister(name)


@pytest.fixture
def _seeded() -> Iterator[None]:
    """The same random numbers in every test; capture warnings are ignored."""
    import torch

    from torch_ir import CaptureWarning

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", CaptureWarning)
        torch.manual_seed(0)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--generate-reports", action="store_true", help="write a Markdown report per catalogue model")
    parser.addoption("--output", default="reports", metavar="DIR", help="folder of the reports (default: reports)")
    parser.addoption("--run-slow", action="store_true", help="run every sweep in full")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while hundreds of modules are imported, which creates none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    if not config.getoption("--run-slow"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.launched() as running:
        yield running


@pytest.fixture
def shown(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """`shown(ir, **options)` is the tab that shows a graph; at the end nothing may have gone wrong there."""
    visits: list[browser.Visit] = []

    def show(ir: IR, scheme: str = "light", **options: Any) -> Any:
        path = tmp_path / f"page{len(visits)}.html"
        explore(ir, path, **options)
        visits.append(browser.Visit(chromium, path, color_scheme=scheme))
        page = visits[-1].page
        page.wait_for_selector("html[data-ready]")
        return page

    yield show
    wrong = [text for visit in visits for text in visit.wrong]
    for visit in visits:
        visit.page.close()
    assert wrong == []
