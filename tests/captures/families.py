"""The families of captures: their models, the options of the capture, and the comparison with eager."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch

import catalogue
from tests.architectures import NEEDS_VALUES, Architecture, architectures
from tests.architectures.equality import open_sizes
from tests.captures.python_calls import counted, models
from tests.captures.rows import Captured, Case, captured
from tests.hard_models import Hard
from tests.hard_models import cases as hard_models
from tests.hard_models_table import outcome_of
from tests.proof import quiet, to_meta
from tests.state_models import sweep as state_sweep
from tests.state_models.case import Case as StateCase
from tests.state_models.case import ambient_cases, random_cases, single_cases
from tests.state_models.oracle import expected
from tests.trained_models import IDS, LABELS, WORDS, X, adamw, decoder, layers, net, of_words, squares
from torch_ir import IR, extract_ir
from torch_ir.training import extract_training

_WANTED: dict[StateCase, Any] = {}  # results of eager
# Their forward iterates over `set(config.layer_types)`, whose order depends on the hashes of the process.
ITERATES_OVER_A_SET = ("dots1", "gemma3_text", "modernbert", "modernbert_decoder", "olmo3")


class Family(NamedTuple):
    """Cases by name; `prepare` is called once with those that are going to be captured."""

    cases: Callable[[], list[Case]]
    sample: int  # cases in a default run of the tests
    prepare: Callable[[Sequence[Case]], None] = lambda _: None
    describe: Callable[[Case], Captured] = captured


def _fixed_sizes() -> list[Case]:
    return [
        Case(each.name, partial(_architecture, each, on_meta=each.name not in NEEDS_VALUES)) for each in architectures()
    ]


def _dynamic_sizes() -> list[Case]:
    return [Case(each.name, partial(_architecture, each, is_open=True)) for each in architectures()]


def _architecture(each: Architecture, *, on_meta: bool = True, is_open: bool = False) -> IR:
    with torch.device("meta" if on_meta else "cpu"):
        model = each.build()
    inputs = to_meta(each.inputs()) if on_meta else each.inputs()
    shapes = open_sizes(inputs) if is_open else None
    with _sorted_sets(model) if each.name in ITERATES_OVER_A_SET else contextlib.nullcontext():
        return extract_ir(model, (), kwargs=inputs, strict=on_meta, dynamic_shapes=shapes)


def _sorted_sets(model: torch.nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Let the code in the module of a model make sorted lists where it makes sets."""
    return mock.patch.object(sys.modules[type(model).__module__], "set", sorted, create=True)


def _catalogue() -> list[Case]:
    """Every entry in eval mode, in training mode, and recorded with equal blocks as functions."""
    modes: dict[str, dict[str, Any]] = {
        "eval": {},
        "train": {"training": True},
        "recorded": {"capture": "record", "blocks": "function"},
    }
    return [
        Case(f"{entry.name} ({mode})", partial(_entry, entry, **options))
        for entry in catalogue.entries()
        for mode, options in modes.items()
    ]


def _entry(entry: catalogue.Entry, *, training: bool = False, **options: Any) -> IR:
    with torch.device("meta"):
        model = entry.build().train(training)
    return extract_ir(model, to_meta(entry.inputs()), kwargs=to_meta(entry.kwargs()), **options)


def _hard() -> list[Case]:
    """Every hard model on real tensors, for the branches of its inputs and for every branch, and on meta."""
    return [
        Case(
            f"{hard.name} ({place})",
            partial(_hard_graph, hard, options),
            None if hard.name == "Compiled" else partial(_hard_result, hard),  # Inductor's rounding is the processor's
            is_forked=True,
        )
        for hard in hard_models().values()
        for place, options in {"real": {}, "every branch": {"explore": 16}, "meta": {"strict": True}}.items()
    ]


def _hard_graph(hard: Hard, options: dict[str, Any]) -> IR:
    on_meta = "strict" in options
    with torch.device("meta" if on_meta else "cpu"):
        model = hard.model().eval()
    args, kwargs = to_meta((hard.args, hard.kwargs)) if on_meta else (hard.args, hard.kwargs)
    return extract_ir(model, args, kwargs=kwargs, **{"strict": False, **options})


def _hard_result(hard: Hard, ir: IR, _: list[str]) -> str:
    said = outcome_of(IR.from_json(ir.to_json()), hard.model().eval(), hard)
    return said.partition(":")[0] if said.startswith("**") else said


def _state_cases() -> list[StateCase]:
    """Every piece in the default way, real and on meta, and recorded; pieces in every mode; random compositions."""
    usual = [each for each in single_cases() if each.road == "auto" or (each.road == "record" and not each.on_meta)]
    modes = [each for each in ambient_cases() if each.road == "auto" and not each.on_meta]
    return [*usual, *modes, *random_cases(60)]


def _state() -> list[Case]:
    return [
        Case(str(each), partial(_state_graph, each), partial(_state_result, each), is_forked=True)
        for each in _state_cases()
    ]


def _state_graph(case: StateCase) -> IR:
    return state_sweep.extracted(case)[0]


def _state_result(case: StateCase, ir: IR, warned: list[str]) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = case.model().state_dict()
    got = state_sweep.results(ir, weights, warned)
    return state_sweep.judged(_WANTED[case], got).kind


def _prepare_state(cases: Sequence[Case]) -> None:
    """Compute the results of eager in a process that does not import torch_ir."""
    _prepare_forks(cases)
    names = {case.name for case in cases}
    chosen = [each for each in _state_cases() if str(each) in names]
    _WANTED.update(zip(chosen, expected(chosen), strict=True))


def _prepare_forks(_: Sequence[Case]) -> None:
    """Import what a capture imports lazily: once for all children, and before Python calls are counted."""
    with quiet():
        state_sweep.warm_up()


def _training() -> list[Case]:
    """Training steps of the catalogue, of three small models, and of every 24th architecture."""
    return [
        *(Case(entry.name, partial(_trained_entry, entry)) for entry in catalogue.entries()),
        *(Case(f"{each.name} (transformers)", partial(_trained_architecture, each)) for each in architectures()[::24]),
        Case("decoder (language model)", lambda: _trained(decoder(), (IDS,), targets=(WORDS,), loss=of_words)),
        Case("layers (cross-entropy)", lambda: _trained(layers(), (X,), targets=(LABELS,), loss=_cross_entropy)),
        Case(
            "net (micro-batches)",
            lambda: _trained(net(), (X,), targets=(LABELS,), loss=_cross_entropy, micro_batches=2),
        ),
    ]


_cross_entropy = torch.nn.functional.cross_entropy


def _trained_entry(entry: catalogue.Entry) -> IR:
    return _trained(entry.build(), entry.inputs(), kwargs=entry.kwargs())


def _trained_architecture(each: Architecture) -> IR:
    return _trained(each.build(), (), kwargs=each.inputs())


def _trained(model: torch.nn.Module, args: tuple[Any, ...], **options: Any) -> IR:
    model = model.to("meta").train()
    options = {"loss": squares, **to_meta(options)}
    return extract_training(model, to_meta(args), optimizer=adamw(model.parameters()), **options)


FAMILIES = {
    "architectures": Family(_fixed_sizes, 3),
    "dynamic_sizes": Family(_dynamic_sizes, 1),
    "catalogue": Family(_catalogue, 8),
    "hard_models": Family(_hard, 2, _prepare_forks),
    "state_models": Family(_state, 3, _prepare_state),
    "training": Family(_training, 1),
    "python_calls": Family(models, 0, _prepare_forks, counted),
}
