"""Options: reports of the whole-catalogue test, and the sweeps that are too slow for every run."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--generate-reports", action="store_true", help="write a Markdown report per catalogue model")
    parser.addoption("--output", default="reports", metavar="DIR", help="folder of the reports (default: reports)")
    parser.addoption("--run-slow", action="store_true", help="run every sweep in full")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--run-slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
