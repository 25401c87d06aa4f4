"""Our collectives and torch's: the same models, sharded by the same styles of torch.distributed.tensor.parallel."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sharded_models import collectives
from tests.test_shard_rules import SAMPLES, Of
from tests.torch_parallel import CASES
from torch_ir import extract_ir, shard, transformers_plan, verify_sharded

RANKS = 4
# Collectives that ours saves. Torch gathers a sequence for queries, keys and values; we gather it once.
pytestmark = pytest.mark.usefixtures("_forked_python")
FEWER = {"Tower by sequence": Counter(all_gather_into_tensor=4)}
REFUSED = {"Llama with 2 heads of keys"}


@cache
def of_torch() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.torch_parallel", str(RANKS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_what_ranks_hold_and_send_is_what_torch_says(name: str) -> None:
    """One forward run: weights of the same shapes; collectives of the same kinds and counts, or fewer as listed."""
    model, inputs, styles = CASES[name]()
    sharded = shard(extract_ir(model, inputs, strict=False), styles, {"tp": RANKS})
    wanted = Counter(of_torch()[name]["collectives"])
    assert collectives(sharded) == wanted - FEWER.get(name, Counter())
    shapes = {key: param.shape for param in sharded.params if param.param for key in param.param.keys}
    assert {key: tuple(shape) for key, shape in of_torch()[name]["shapes"].items()}.items() <= shapes.items()
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), inputs)
    assert is_valid, str(report)


def test_what_torch_cannot_run() -> None:
    """Torch shards through key heads, and a view fails; here attention gathers them, and our plan replicates them."""
    name = "Llama with 2 heads of keys"
    assert "is invalid for input of size" in of_torch()[name]["error"]
    model, inputs, styles = CASES[name]()
    ir = extract_ir(model, inputs, strict=False)
    is_valid, report = verify_sharded(shard(ir, styles, {"tp": RANKS}), model, model.state_dict(), inputs)
    assert is_valid, str(report)
    sharded = shard(ir, transformers_plan(model.config, ir, ranks=RANKS), {"tp": RANKS})
    assert collectives(sharded) == of_torch()["Llama"]["collectives"]


# Ways in which ours gather once more than torch.
MORE = {
    "copies": "the tensor that only gives its dtype is gathered",
    "baddbmm": "two operands that are cut by batches are gathered; torch gathers the third instead",
}


@pytest.mark.parametrize("every", [14, pytest.param(1, marks=pytest.mark.slow)])
def test_rules_send_no_more_than_those_of_dtensor(every: int) -> None:
    """For inputs of an operator that are cut in any way, and results that all ranks have whole."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.dtensor_rules", str(every)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    compared = 0
    for name, places, its in map(json.loads, done.stdout.splitlines()):
        if isinstance(its, str) or name in MORE:  # torch has no rule, or needs every tensor as a DTensor
            continue
        compared += 1
        function, shapes = SAMPLES[name]
        ir = extract_ir(Of(function, 0), tuple(map(torch.randn, shapes)), strict=False)
        given = {tensor.name: place for tensor, place in zip(ir.graph_inputs, places, strict=True)}
        assert collectives(shard(ir, {}, {"tp": 2}, inputs=given)).total() <= sum(its.values()), (name, places)
    assert compared >= 300 // every


def test_the_page_tells_the_same_numbers() -> None:
    """docs/sharding.md has a row for each model, in the same order."""
    table = (Path(__file__).parent.parent / "docs" / "sharding.md").read_text().partition("| model, styles |")[2]
    rows = [line.split(" | ")[1] for line in table.split("\n\n")[0].splitlines()[2:]]
    short = {"reduce_scatter_tensor": "reduce_scatter", "all_gather_into_tensor": "all_gather"}
    for name, told in zip(CASES, rows, strict=True):
        counts = of_torch()[name].get("collectives", {})
        heard = ", ".join(f"{count} `{short.get(kind, kind)}`" for kind, count in counts.items())
        assert told == (heard or "an error of `view` in the first run")
