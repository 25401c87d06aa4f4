"""The type checker, strict, over the whole package; here it runs beside the tests of the other worker."""

import subprocess
import sys

import pytest

from tests.documents import ROOT


@pytest.mark.long
def test_the_package_is_typed() -> None:
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
