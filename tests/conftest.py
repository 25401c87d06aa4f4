"""Options: reports of the whole-catalogue test, and the sweeps that are too slow for every run."""

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is remembered is remembered for this run, and nothing of the user's is read."""
    os.environ["TORCH_IR_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--generate-reports", action="store_true", help="write a Markdown report per catalogue model")
    parser.addoption("--output", default="reports", metavar="DIR", help="folder of the reports (default: reports)")
    parser.addoption("--run-slow", action="store_true", help="run every sweep in full")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--run-slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
