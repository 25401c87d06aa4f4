"""Random programs that branch on data: every path is in one graph, and the graph takes the right one."""

import math
import random
from typing import Any

import pytest
import torch
from torch import nn

from torch_ir import IR, IRExecutor, extract_ir

_STEPS: list[Any] = [
    lambda x, layer: x + 1,
    lambda x, layer: x * -0.5,
    lambda x, layer: layer(x).tanh(),
    lambda x, layer: x.relu() - 0.3,
    lambda x, layer: x.flip(0),
    lambda x, layer: x - x.mean(0),
    lambda x, layer: x.clone().clamp_(-1, 1),
]
_QUESTIONS: list[Any] = [
    lambda x: x.sum() > 0,
    lambda x: x[0, 0] > x[1, 1],
    lambda x: (x > 0.5).any(),
    lambda x: x.abs().max() < 1.5,
    lambda x: x.mean() + 0.1,  # a number that is never zero is true
]
Program = list[Any]  # of steps, and of triples: a condition, the steps if true, the steps if false


def program(draw: random.Random, depth: int) -> Program:
    """A few steps, with questions among them, and programs in either branch."""
    made: Program = []
    for _ in range(draw.randint(1, 3)):
        if depth and draw.random() < 0.6:
            made.append((draw.choice(_QUESTIONS), program(draw, depth - 1), program(draw, depth - 1)))
        else:
            made.append(draw.choice(_STEPS))
    return made


def ways(steps: Program) -> int:
    """How many ways there are through a program."""
    return math.prod(ways(step[1]) + ways(step[2]) for step in steps if isinstance(step, tuple))


def small_program(draw: random.Random) -> Program:
    """A program with branches, but few enough that all paths take seconds."""
    made = program(draw, 2)
    return made if 1 < ways(made) <= 24 else small_program(draw)


class Walk(nn.Module):
    """Runs a program in Python, and counts left turns in a buffer."""

    def __init__(self, steps: Program) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("left", torch.zeros(()))
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.walk(self.steps, x)

    def walk(self, steps: Program, x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            if not isinstance(step, tuple):
                x = step(x, self.layer)
            elif step[0](x):
                self.left.add_(1)
                x = self.walk(step[1], x)
            else:
                x = self.walk(step[2], x)
        return x


def check_walk(seed: int, how: str, inputs: int) -> None:
    """The graph of every path, captured without values, returns what Python returns on every input."""
    torch.manual_seed(seed)
    model = Walk(small_program(random.Random(seed))).eval()
    ir = extract_ir(model, (torch.empty(3, 3, device="meta"),), strict=False, capture=how, explore=24)
    ir = IR.from_json(ir.to_json())
    assert not [node for node in ir.all_nodes() if node.op_type == "torch_ir.decision.default"]
    for _ in range(inputs):
        x = torch.randn(3, 3) * 2
        outcome = IRExecutor(ir, model.state_dict()).run((x,))
        before = model.left.clone()
        wanted = [model(x), *([model.left.clone()] if ir.mutations else [])]
        model.left.copy_(before)
        torch.testing.assert_close([*outcome.outputs, *outcome.mutations.values()], wanted, rtol=0, atol=0)


pytestmark = pytest.mark.filterwarnings("ignore:captured by", "ignore:the values of")


@pytest.mark.parametrize("how", ["auto", "record"])
@pytest.mark.parametrize("seed", range(2))
def test_a_random_program_that_branches_on_data(seed: int, how: str) -> None:
    check_walk(seed, how, 20)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["auto", "record"])
@pytest.mark.parametrize("seed", range(2, 34))
def test_many_random_programs_that_branch_on_data(seed: int, how: str) -> None:
    check_walk(seed, how, 45)
