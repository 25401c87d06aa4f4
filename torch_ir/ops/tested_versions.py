"""The torch versions with which the tests of fast capture were run to the end; docs/compatibility.md has results."""

from __future__ import annotations

import re

OLDEST_TORCH = "2.11"  # the requirement in pyproject.toml
TESTED_TORCH = ("2.11", "2.13", "2.14", "2.15")
OLDEST_TRANSFORMERS = "5.5"  # the requirement of the extra in pyproject.toml
OPEN_SIZES_TORCH = ("2.11", "2.13", "2.15")  # of these, those with which dynamic sizes are captured fast
_RELEASE = re.compile(r"(\d+\.\d+)\.\d+(\+.*)?")  # not a nightly build or a release candidate


def is_tested(version: str) -> bool:
    """Whether a version of torch is a release of a minor version that was tested."""
    release = _RELEASE.fullmatch(version)
    return release is not None and release[1] in TESTED_TORCH


def is_tested_with_open_sizes(version: str) -> bool:
    """Whether a version of torch was tested with fast recordings of open sizes."""
    release = _RELEASE.fullmatch(version)
    return release is not None and release[1] in OPEN_SIZES_TORCH


def is_too_old(version: str) -> bool:
    """Whether a version of torch is older than the oldest supported one."""
    return is_before(version, OLDEST_TORCH)


def is_before(version: str, minor: str) -> bool:
    """Whether a version of torch is older than a minor version such as `2.13`."""
    found = re.match(r"(\d+)\.(\d+)", version)
    first = tuple(map(int, minor.split(".")))
    return found is not None and (int(found[1]), int(found[2])) < first
