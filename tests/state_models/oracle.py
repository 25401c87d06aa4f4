"""Plain eager PyTorch in a process that never imports torch_ir: `python -m tests.state_models.oracle FILE`.

Each model is built and run in a forked child, so that no model sees what another left in the process.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.state_models.case import CALLS, Case, ambient, inputs
from tests.state_models.forked import in_children

ROOT = Path(__file__).resolve().parents[2]


def eager(case: Case) -> Any:
    """The results of a fresh model, call after call, as lists; or the error that it raises."""
    torch.manual_seed(0)
    given = inputs()
    try:
        with ambient("plain" if case.mode == "grad" else case.mode):  # no graph has gradients, wherever it is captured
            model = case.model()
            return [_plain(model(given[number].clone())) for number in CALLS]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _plain(result: torch.Tensor) -> torch.Tensor:
    return result.detach().clone()


def expected(cases: Sequence[Case]) -> list[Any]:
    """Return the results of eager for each case, from a fresh process."""
    distinct = list(dict.fromkeys(case._replace(road="auto", on_meta=False) for case in cases))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases"
        file.write_bytes(pickle.dumps([tuple(case) for case in distinct]))
        subprocess.run([sys.executable, "-m", "tests.state_models.oracle", str(file)], check=True, cwd=ROOT)
        found = dict(zip(distinct, pickle.loads(file.read_bytes()), strict=True))
    return [found[case._replace(road="auto", on_meta=False)] for case in cases]


if __name__ == "__main__":
    asked = Path(sys.argv[1])
    torch.set_num_threads(1)
    answers = in_children(eager, [Case(*each) for each in pickle.loads(asked.read_bytes())])
    assert "torch_ir" not in sys.modules
    asked.write_bytes(pickle.dumps(answers))
