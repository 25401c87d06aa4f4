"""Properties of every random model, and the violations found."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

import torch_ir
from tests.proof import quiet, to_meta
from tests.random_models.equal import apart
from tests.random_models.model import Built, Call, built
from tests.random_models.recipe import BATCHES, Recipe
from torch_ir import IR, IRExecutor, TorchIRError, extract_ir, optimize, verify_ir_with_state_dict
from torch_ir.errors import first_line
from torch_ir.ops.fast_paths import plain_attention
from torch_ir.passes.optimize_levels import LEVELS
from torch_ir.passes.random_check import prove
from torch_ir.run.executor import flatten_call


@dataclass(frozen=True)
class Verdict:
    """Result of a model: `fault` is the error, `refusal` why there is no graph; both are empty on success."""

    fault: str = ""
    refusal: str = ""
    nodes: int = 0


def judged(recipe: Recipe, *, roads: bool = True, thorough: bool = True) -> Verdict:
    """Run a model through all steps; `thorough` adds verification, passes and conversions to torch."""
    with torch.random.fork_rng(devices=[]), quiet():
        made = built(recipe)
        try:
            ir = captured(made)
        except TorchIRError as error:
            reason = first_line(error)
            return Verdict(f"refused what torch.export takes: {reason}" if _is_exported(made) else "", reason)
        except Exception as error:  # no user may see such an exception
            return Verdict(f"capture: {type(error).__name__}: {first_line(error)}")
        checks = [_carried, _executed, *([_same_by_export] if roads else ()), *(_THOROUGH if thorough else ())]
        for check in checks:
            try:
                found = check(made, ir)
            except Exception as error:  # likewise
                found = f"{type(error).__name__}: {first_line(error)}"
            if found:
                return Verdict(f"{check.__name__.strip('_')}: {found}", nodes=len(ir.nodes))
        return Verdict(nodes=len(ir.nodes))


def captured(made: Built, **options: Any) -> IR:
    """Return the graph of a model, on meta or with weights, as the recipe says."""
    on_meta = made.recipe.on_meta
    args, kwargs = to_meta(made.call()) if on_meta else made.call()
    model = made.bare if on_meta else copy.deepcopy(made.model)
    return extract_ir(
        model, args, kwargs=kwargs, dynamic_shapes=made.dynamic_shapes, strict=on_meta, **options
    )  # fmt: skip


def _is_exported(made: Built) -> bool:
    """Whether torch.export alone captures the model, and its program runs."""
    args, kwargs = made.call()
    try:
        with torch.no_grad(), plain_attention():
            program = torch.export.export(
                copy.deepcopy(made.model), args, kwargs, dynamic_shapes=made.dynamic_shapes, strict=False
            )
            again, named = made.call()
            return not apart(eager(made, copy.deepcopy(made.model), made.call()), program.module()(*again, **named))
    except Exception:  # torch refuses in many ways
        return False


def eager(made: Built, model: torch.nn.Module, call: Call, seed: int = 0) -> Any:
    """Return the model's own results, with the operators that a capture sees."""
    torch.default_generator.manual_seed(seed)
    with torch.no_grad(), plain_attention():
        return model(*call[0], **call[1])


# -- what must hold ---------------------------------------------------------------------------------------------------


def _carried(made: Built, ir: IR) -> str:
    """Both file formats must round-trip."""
    text = ir.to_json()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        ir.save(path)
        if torch_ir.load_ir(path).to_json() != text:
            return "the file says something else"
    return "" if torch_ir.from_protobuf(torch_ir.to_protobuf(ir)).to_json() == text else "protobuf says something else"


def _executed(made: Built, ir: IR) -> str:
    """Two consecutive calls return the model's results, make its changes, and leave the caller's tensors unchanged."""
    return _same_calls(made, _Run(IR.from_json(ir.to_json()), made))


def _same_calls(made: Built, run: Callable[[Call, int], tuple[Any, list[Any], dict[str, Any]]]) -> str:
    model = copy.deepcopy(made.model)
    for number, batch in enumerate((BATCHES[0], BATCHES[-1])):
        call, given = made.call(number, batch), made.call(number, batch)
        wanted = eager(made, model, call, number)
        got, inputs, state = run(given, number)
        kept = model.state_dict()
        changed = {key: kept[key] for key in state if key in kept}
        found = (
            apart(wanted, got)
            or apart(pytree.tree_leaves(call), inputs, "input afterwards")
            or apart(changed, {key: state[key] for key in changed}, "state")
        )
        if found:
            return f"call {number}: {found}"
    return ""


class _Run:
    """The executor of a graph; it must not write to its inputs."""

    def __init__(self, ir: IR, made: Built) -> None:
        self.ir = ir
        self.executor = IRExecutor(ir, copy.deepcopy(made.model.state_dict()))

    def __call__(self, call: Call, number: int) -> tuple[Any, list[Any], dict[str, Any]]:
        before = copy.deepcopy(call)
        state = copy.deepcopy(self.executor._params)
        torch.default_generator.manual_seed(number)
        outcome = self.executor.run(flatten_call(self.ir, *call))
        changed = dict(zip(self.ir.graph_inputs, flatten_call(self.ir, *call), strict=True))
        after = {**changed, **{target: value for target, value in outcome.mutations.items() if target in changed}}
        self.executor._params = state  # once more, now as the model is called
        torch.default_generator.manual_seed(number)
        nested = self.executor(*call[0], **call[1])
        if found := apart(pytree.tree_leaves(before), pytree.tree_leaves(call), "the caller's input"):
            raise AssertionError(found)
        values = iter(after.values())
        leaves = [next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(call)]
        return nested, leaves, self.executor.state


def _same_by_export(made: Built, ir: IR) -> str:
    """Fast capture returns the graph of torch.export."""
    if made.recipe.is_dynamic:
        return ""
    try:
        exact = captured(made, capture="export")
    except TorchIRError:  # only a recording has it
        return ""
    exact.extensions |= ir.extensions  # the way by which it was captured
    if ir.to_json() == exact.to_json():
        return ""
    pairs = zip(exact.to_json().splitlines(), ir.to_json().splitlines(), strict=False)
    return next((f"{one[:160]} / {other[:160]}" for one, other in pairs if one != other), "one is longer")


def _verified(made: Built, ir: IR) -> str:
    args, kwargs = made.call()
    report = verify_ir_with_state_dict(
        ir, made.model.state_dict(), copy.deepcopy(made.model), args, test_kwargs=kwargs
    )[1]
    return "" if report.is_valid else str(report)


def _optimized(made: Built, ir: IR) -> str:
    """`clean` leaves every bit as it is; the others, all but rounding."""
    for level in LEVELS:
        better, report = optimize(ir, level)
        if level == "clean":
            found = _same_calls(made, _Run(better, made))
        else:
            flat, weights = flatten_call(ir, *made.call()), made.model.state_dict()
            found = prove(ir, better, inputs=flat, weights=weights, trials=1, changes=report.changes).reason
        if found and not found.startswith("both return only NaN"):
            return f"{level}: {found}"
    return ""


def _back_in_torch(made: Built, ir: IR) -> str:
    module = torch_ir.to_torch(ir, made.model.state_dict())
    return _same_calls(made, _called(module))


def _back_in_python(made: Built, ir: IR) -> str:
    space: dict[str, Any] = {"__name__": "written"}
    exec(torch_ir.to_python(ir), space)
    module = space["Net"]()
    module.load_state_dict(
        {key: value.clone() for key, value in made.model.state_dict().items()}, assign=True, strict=False
    )
    return _same_calls(made, _called(module))


def _called(module: torch.nn.Module) -> Callable[[Call, int], tuple[Any, list[Any], dict[str, Any]]]:
    def run(call: Call, number: int) -> tuple[Any, list[Any], dict[str, Any]]:
        torch.default_generator.manual_seed(number)
        with torch.no_grad():
            made = module(*call[0], **call[1])
        return made, pytree.tree_leaves(call), dict(module.state_dict())

    return run


_THOROUGH = (_verified, _optimized, _back_in_torch, _back_in_python)
