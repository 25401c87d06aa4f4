"""Our own shape rules against torch's fake tensors: over dtypes, shapes and strides, the answers are the same."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.shape_call_table import arguments
from tests.shape_calls import Calls
from torch_ir.analysis.shapes.shape_rules import Made, call_rule, own_rule
from torch_ir.capture.fast.rule_answers import FixedFakes, Question, Rule
from torch_ir.capture.fast.shape_tensors import Ghost, NotCoveredError
from torch_ir.ops.calling import mapped
from torch_ir.ops.own_shape_rules import RULES
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_types import dtype_name, to_name

CALLS = {False: 12, True: 300}  # of each operator: a sample, and in the slow sweep


def described(rule: Rule) -> Any:
    outputs = [output and (output.form, output.same_as, output.view_of) for output in rule.outputs]
    return rule.new_value, outputs, rule.makes_list, rule.is_question, rule.assertion


@pytest.mark.parametrize("func", RULES, ids=str)
@pytest.mark.parametrize("is_sweep", [False, pytest.param(True, marks=pytest.mark.slow)], ids=("sample", "sweep"))
def test_own_rules_answer_as_fake_tensors_do(func: Any, is_sweep: bool) -> None:
    """A rule of ours either declines, or gives the shapes, dtypes, strides and memory that fake tensors give."""
    call, accepted = Calls(str(func)), 0
    for _ in range(CALLS[is_sweep]):
        args, kwargs = arguments(func, call)
        own = _OwnRules()
        try:
            ours = described(Question(func, args, kwargs).asked(own))
        except (NotCoveredError, RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
            assert own.answer is None, (args, kwargs)
            continue
        if own.answer is None:
            continue
        accepted += 1
        with torch.no_grad():
            theirs = described(Question(func, args, kwargs).asked(_FakesOnly()))
        forms = [(each.shape, each.stride(), each.dtype) for each in _ghosts((args, kwargs))]
        assert ours == theirs, (forms, args, kwargs, _shown(ours), _shown(theirs))
    assert accepted >= CALLS[is_sweep] // 30


def test_shape_inference_answers_as_fake_tensors_do() -> None:
    """With our own rules or with torch's, the outputs in numbers are the same: shapes, dtypes and strides."""
    accepted = 0
    for func in RULES:
        call = Calls(f"{func} in numbers")
        for _ in range(6):
            tensors, attrs = _in_numbers(func, *arguments(func, call))
            own = own_rule(func, tensors, attrs)
            if own is not None:
                accepted += 1
                assert own == call_rule(func, tensors, attrs), (func, tensors, attrs)
    assert accepted > 3 * len(RULES)


def _in_numbers(func: Any, args: Any, kwargs: Any) -> tuple[dict[str, Made], dict[str, Any]]:
    """A call as shape inference gets it: tensors and attributes by name, lists of tensors by element."""
    tensors: dict[str, Made] = {}
    attrs: dict[str, Any] = {}
    for name, value in bind(func, args, kwargs).items():
        ghosts = {name: value} if isinstance(value, Ghost) else {}
        if isinstance(value, (list, tuple)) and _ghosts(value):
            ghosts = {f"{name}.{index}": item for index, item in enumerate(value) if item is not None}
            attrs |= {f"{name}.{index}": None for index, item in enumerate(value) if item is None}
        tensors |= {each: (tuple(t.shape), dtype_name(t.dtype), t.stride()) for each, t in ghosts.items()}
        attrs |= {} if ghosts else {name: mapped(value, to_name)}
    return tensors, attrs


class _OwnRules(FixedFakes):
    """The source of rules that is used, which notes the answer of our own rule."""

    answer: Any = None

    def by_own_rule(self, question: Question) -> Any:
        self.answer = super().by_own_rule(question)
        return self.answer


class _FakesOnly(FixedFakes):
    def by_own_rule(self, question: Question) -> None:
        return None


def _ghosts(value: Any) -> list[Ghost]:
    if isinstance(value, (list, tuple, dict)):
        return [ghost for item in (value.values() if isinstance(value, dict) else value) for ghost in _ghosts(item)]
    return [value] if isinstance(value, Ghost) else []


def _shown(described: Any) -> Any:
    return [output and (output[0].shape, output[0].stride, output[0].dtype, *output[1:]) for output in described[1]]


COLD = """
import sys
import torch, torch_ir
from torch import nn

class Block(nn.Module):
    # attention as in language models: rotated heads of one projection, and a mask of indices

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x, mask):
        heads = [part.view(1, 5, 2, 4).transpose(1, 2) for part in self.qkv(x).split(8, -1)]
        q, k = (part * 2 + torch.cat((-part[..., 2:], part[..., :2]), -1) for part in heads[:2])
        at = torch.arange(5)
        seen = (at[:, None] >= at) & mask.bool()[torch.arange(1)[:, None, None, None], at]
        found = nn.functional.scaled_dot_product_attention(q, k, heads[2], attn_mask=seen.expand(1, 1, 5, 5))
        return self.out(found.transpose(1, 2).reshape(1, 5, 8)).float().mean(-1)


with torch.device("meta"):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4), nn.GELU(), nn.LayerNorm(4), nn.Softmax(-1),
    ).eval()
    ir = torch_ir.extract_ir(model, (torch.empty(1, 3, 8, 8),))
    block = torch_ir.extract_ir(Block().eval(), (torch.empty(1, 5, 8), torch.ones(1, 5, dtype=torch.int64)))
torch_ir.deserialize_ir(ir.to_json())
torch_ir.deserialize_ir(block.to_json())
print(len(ir.nodes), [name for name in ("sympy", "torch._dynamo", "torch_ir.capture.record") if name in sys.modules])
"""


def test_a_first_capture_and_checked_load_import_no_sympy() -> None:
    """Nor torch._dynamo and the other recorders, for convolutions and masked attention in a fresh process."""
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "10 []", done.stderr


FIRST_AND_SECOND = """
import torch
import torch_ir

models = [(torch.nn.GRU(4, 3), (1, 2, 4)), (torch.nn.LSTM(4, 3, 2), (1, 2, 4)), (torch.nn.Softplus(), (2, 3))]
for model, shape in models:
    first, second = (torch_ir.extract_ir(model.eval(), (torch.empty(shape),), strict=False) for _ in range(2))
    print(first.to_json() == second.to_json())
"""


def test_the_first_capture_that_needs_fake_tensors_is_like_the_second() -> None:
    """What is imported while a model runs leaves no trace in the graph."""
    done = subprocess.run([sys.executable, "-c", FIRST_AND_SECOND], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]
