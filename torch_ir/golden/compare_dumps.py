"""Compare dumps of another runtime with a golden pack: the first node that differs, and a summary by module."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

import torch

from torch_ir.errors import SerializationError, did_you_mean, listed
from torch_ir.golden.dumps import Dumps, open_dumps
from torch_ir.golden.pack import Pack, Value, read_pack
from torch_ir.ir import Limits
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.run.tolerances import Difference, compare, tolerances
from torch_ir.verify.divergence import Divergence

_SHOWN = 8
_OPAQUE = re.compile(r"bits.*|float4.*|u?int[1-7]")  # dtypes that torch stores, but does not compute with
_IN_FUNCTION = re.compile(r".+/.+@\d+", re.DOTALL)  # `block/linear@2`


@dataclass
class ModuleSummary:
    """The comparison of one module, including inner modules."""

    module: str
    compared: int = 0
    differing: int = 0
    missing: int = 0
    max_diff: float = 0.0


@dataclass
class Comparison:
    """The result of comparing dumps with a pack."""

    divergence: Divergence | None = None
    compared: int = 0
    differing: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    modules: list[ModuleSummary] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)  # largest absolute error of each compared value
    sqnr: dict[str, float] = field(default_factory=dict)  # in dB, of values that are not bit-equal
    cosine: dict[str, float] = field(default_factory=dict)  # the same values as vectors

    @property
    def is_equal(self) -> bool:
        """Whether all dumped values agree; False if there are none."""
        return self.compared > 0 and not self.differing

    def __str__(self) -> str:
        verdict = "EQUAL" if self.is_equal else "DIFFERENT" if self.differing else "NOTHING COMPARED"
        counts = f"{self.compared} values compared, {len(self.differing)} differ, {len(self.missing)} missing"
        lines = [f"Comparison: {verdict}", f"  {counts}"]
        if self.sqnr:
            noisiest, turned = min(self.sqnr, key=self.sqnr.__getitem__), min(self.cosine, key=self.cosine.__getitem__)
            lines.append(
                f"  lowest SQNR {self.sqnr[noisiest]:.1f} dB ({noisiest}), "
                f"lowest cosine {self.cosine[turned]:.6f} ({turned})"
            )
        if self.divergence:
            lines += [f"  {line}" for line in str(self.divergence).splitlines()]
        for summary in self.modules:
            if summary.differing or (summary.missing and summary.compared):
                lines.append(
                    f"  {summary.module or '(model)'}: {summary.differing} of {summary.compared} differ, "
                    f"{summary.missing} missing, max diff {summary.max_diff:.3g}"
                )
        if self.missing:
            lines.append(f"  missing: {listed(self.missing, _SHOWN)}")
        lines += [f"  unknown: {name}" for name in self.unknown[:_SHOWN]]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def compare_golden(
    pack: str | os.PathLike[str],
    dumps: str | os.PathLike[str],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    names: Mapping[str, str] | None = None,
    limits: Limits = Limits(),
) -> Comparison:
    """Compare dumps with a pack, in the order of the graph.

    Dumps are matched by the name of the tensor, else by that of its node; `names` maps other names to these. The
    default tolerances are those of the pack, or of the dtype of a dump that is less precise. `limits` apply to the
    index of the pack.
    """
    golden = read_pack(pack, limits)
    with open_dumps(dumps) as found:
        return _compared(golden, found, names or {}, rtol, atol)


def _compared(
    golden: Pack, found: Dumps, names: Mapping[str, str], rtol: float | None, atol: float | None
) -> Comparison:
    places = _places(golden.values, found, names)
    comparison = Comparison(notes=list(golden.notes))
    converted: dict[str, list[str]] = {}
    differences: dict[str, Difference] = {}
    for value in golden.values:
        if value.name not in places:
            comparison.missing.append(value.name)
            continue
        dumped = found[places[value.name]]()
        actual, note = _in_dtype(dumped, value)
        if note:
            converted.setdefault(note, []).append(value.name)
        expected, allowed = golden.tensor(value), _tolerances(value, dumped.dtype)
        given = (allowed[0] if rtol is None else rtol, allowed[1] if atol is None else atol)
        if _OPAQUE.fullmatch(value.dtype) and actual.dtype == expected.dtype:
            expected, actual = (tensor.reshape(-1).view(torch.uint8) for tensor in (expected, actual))
        differences[value.name] = difference = compare(expected, actual, *given)
        if (agreement := _agreement(expected, actual)) is not None:
            comparison.sqnr[value.name], comparison.cosine[value.name] = agreement
        if difference.reason and comparison.divergence is None:
            comparison.divergence = _divergence(value, difference, golden.values, differences)
    comparison.compared = len(differences)
    comparison.errors = {name: difference.max_diff for name, difference in differences.items()}
    comparison.differing = [name for name, difference in differences.items() if difference.reason]
    comparison.unknown = _unknown(found, places, golden.values)
    comparison.modules = _roll_up(golden.values, differences)
    comparison.notes += [f"{note}: {listed(names, _SHOWN)}" for note, names in converted.items()]
    return comparison


def _places(values: Iterable[Value], dumps: Dumps, names: Mapping[str, str]) -> dict[str, str]:
    """Map the names of values to those of dumps; a node's name may be used for its only value.

    Inside functions, a node runs once per call and may be named as one of the graph, so only full names count.
    """
    by_node: dict[str, list[str]] = {}
    known = set[str]()
    for value in values:
        known.add(value.name)
        if not _IN_FUNCTION.fullmatch(value.name):
            by_node.setdefault(value.node, []).append(value.name)
    places: dict[str, str] = {}
    for dump in dumps:
        name = names.get(dump, dump)
        if name not in known and len(by_node.get(name, ())) == 1:
            name = by_node[name][0]
        if name in known:
            if name in places:
                raise SerializationError(f"both {places[name]!r} and {dump!r} are dumps of {name!r}")
            places[name] = dump
    return places


def _in_dtype(actual: torch.Tensor, value: Value) -> tuple[torch.Tensor, str]:
    """Return a dump in the dtype of the pack, with a note; unchanged if the conversion would lose information."""
    wanted = TORCH_DTYPES[value.dtype]
    if actual.dtype == torch.uint8 and list(actual.shape) == [*value.shape, wanted.itemsize]:
        return actual.view(wanted).reshape(value.shape), ""  # a dtype that numpy lacks, dumped as bytes
    dumped = str(actual.dtype).removeprefix("torch.")
    is_opaque = any(map(_OPAQUE.fullmatch, (value.dtype, dumped)))
    if actual.dtype == wanted or is_opaque or actual.is_complex() > wanted.is_complex:
        return actual, ""
    both_are_numbers = actual.is_floating_point() and wanted.is_floating_point
    fits = both_are_numbers or torch.equal(actual.to(wanted).to(actual.dtype), actual)
    is_coarser = _tolerances(value, actual.dtype) != (value.rtol, value.atol)
    note = f"dumped as {dumped}, compared as {value.dtype}{f' with the tolerance of {dumped}' if is_coarser else ''}"
    return (actual.to(wanted), note) if fits else (actual, "")


def _tolerances(value: Value, dumped: torch.dtype) -> tuple[float, float]:
    """Return the tolerances of a value, scaled to those of the dump's dtype if that is less precise."""
    own, coarse = tolerances(TORCH_DTYPES[value.dtype]), tolerances(dumped)
    if not dumped.is_floating_point or not own[0] or coarse[0] <= own[0]:
        return value.rtol, value.atol
    return value.rtol * coarse[0] / own[0], value.atol * coarse[1] / own[1]


def _agreement(expected: torch.Tensor, actual: torch.Tensor) -> tuple[float, float] | None:
    """Return the SQNR in dB and the cosine of two values; None for equal ones and those that are not finite numbers."""
    same = expected.shape == actual.shape and expected.dtype == actual.dtype
    if not same or not expected.is_floating_point():
        return None
    one, other = expected.double().flatten(), actual.double().flatten()
    noise, signal = float((one - other).square().sum()), float(one.square().sum())
    lengths = float(one.norm() * other.norm())
    if not (noise and math.isfinite(noise) and math.isfinite(signal)):
        return None
    return (10 * math.log10(signal / noise) if signal else -math.inf, float(one @ other) / lengths if lengths else 0.0)


def _divergence(
    value: Value, difference: Difference, values: Iterable[Value], differences: Mapping[str, Difference]
) -> Divergence:
    """Return the first wrong value, with the preceding nodes that were not dumped, back to those that agree."""
    by_name = {known.name: known for known in values}
    unknown: set[str] = set()
    pending = list(value.reads)
    while pending:
        name = pending.pop()
        if name in by_name and name not in differences and name not in unknown:
            unknown.add(name)
            pending += by_name[name].reads
    reason = f"it draws random numbers; {difference.reason}" if value.is_random else difference.reason
    return Divergence(
        value.node, value.op_type, value.name, reason, value.module, value.call, value.module_class, value.source,
        max_diff=difference.max_diff,
        agreed=tuple(dict.fromkeys(name for name in value.reads if name in differences)),
        suspects=tuple(dict.fromkeys(known.node for known in by_name.values() if known.name in unknown)),
    )  # fmt: skip


def _unknown(dumps: Dumps, places: Mapping[str, str], values: Iterable[Value]) -> list[str]:
    """Return the dumps that match no value of the pack, the first ones with the nearest known name."""
    used = set(places.values())
    known = {value.name: value.node for value in values}
    first = {node: name for name, node in reversed(known.items())}
    unknown = [dump for dump in dumps if dump not in used]
    near = [did_you_mean(first.get(dump, dump), known) for dump in unknown[:_SHOWN]]
    return [f"{dump!r}{hint}" for dump, hint in zip_longest(unknown, near, fillvalue="")]


def _roll_up(values: Iterable[Value], differences: Mapping[str, Difference]) -> list[ModuleSummary]:
    """Summarise every module, the model first; a value counts for all enclosing modules."""
    summaries: dict[str, ModuleSummary] = {}
    for value in values:
        parts = value.module.split(".") if value.module else []
        for path in [".".join(parts[:length]) for length in range(len(parts) + 1)]:
            summary = summaries.setdefault(path, ModuleSummary(path))
            difference = differences.get(value.name)
            summary.missing += difference is None
            summary.compared += difference is not None
            if difference is not None:
                summary.differing += difference.reason != ""
                summary.max_diff = max(summary.max_diff, difference.max_diff)
    return list(summaries.values())
