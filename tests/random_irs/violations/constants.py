"""Violations in constants, inline and in side files (R15, R16)."""

import json
from pathlib import Path
from typing import Any

from tests.random_irs.draws import Draw
from tests.random_irs.violations.kinds import Record, tables, violation
from torch_ir.ir.graph.constant_data import DTYPES

Places = list[tuple[str, dict[str, Any]]]


def _constants(document: Record) -> Places:
    return [
        (f"{path}.{key:.200}", constant)
        for path, graph in tables(document, "constants")
        for key, constant in graph["constants"].items()
    ]


@violation("R15")
def bytes_that_are_too_few(draw: Draw, document: Record) -> str | None:
    if not (found := [(path, constant) for path, constant in _constants(document) if constant["base64"]]):
        return None
    path, constant = draw.choice(found)
    constant["base64"] = constant["base64"][:-4]
    return path


@violation("R15")
def bytes_that_are_too_many(draw: Draw, document: Record) -> str | None:
    if not (found := _constants(document)):
        return None
    path, constant = draw.choice(found)
    constant["base64"] = f"AAAA{constant['base64']}"
    return path


@violation("R15")
def letters_that_are_no_base64(draw: Draw, document: Record) -> str | None:
    if not (found := _constants(document)):
        return None
    path, constant = draw.choice(found)
    constant["base64"] = draw.choice(("!!!!", "A", "AA A", "größe"))
    return f"{path}.base64"


@violation("R15")
def a_flag_that_is_neither(draw: Draw, document: Record) -> str | None:
    found = [(path, one) for path, one in _constants(document) if one["dtype"] == "bool" and one["base64"]]
    if not found:
        return None
    path, constant = draw.choice(found)
    constant["base64"] = f"____{constant['base64'][4:]}".replace("_", "/")
    return path


@violation("R7")
def values_of_another_shape(draw: Draw, document: Record) -> str | None:
    if not (found := _constants(document)):
        return None
    path, constant = draw.choice(found)
    constant["shape"] = [1, *constant["shape"]]
    return path


@violation("R5")
def values_of_an_unknown_dtype(draw: Draw, document: Record) -> str | None:
    if not (found := _constants(document)):
        return None
    path, constant = draw.choice(found)
    constant["dtype"] = "float33"
    assert constant["dtype"] not in DTYPES
    return f"{path}.dtype"


def _beside(path: Path) -> Places:
    """Return the constants in side files, by their path in the document."""
    return [(place, one) for place, one in _constants(json.loads(path.read_text())) if "file" in one]


def _rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    body = text[: text.rindex(',\n"digest"')] + "\n}\n"
    path.write_text(body.replace(old, new))


@violation("R16", "files")
def a_side_file_that_is_gone(draw: Draw, path: Path) -> str | None:
    if not (found := _beside(path)):
        return None
    path.with_name(found[0][1]["file"]).unlink()
    return f"{found[0][0]}.file"


@violation("R16", "files")
def a_side_file_that_is_a_link(draw: Draw, path: Path) -> str | None:
    if not (found := _beside(path)):
        return None
    side = path.with_name(found[0][1]["file"])
    side.symlink_to(side.rename(side.with_name("elsewhere")))
    return f"{found[0][0]}.file"


@violation("R16", "files")
def a_side_file_that_is_cut_short(draw: Draw, path: Path) -> str | None:
    if not (found := _beside(path)):
        return None
    side = path.with_name(found[0][1]["file"])
    side.write_bytes(side.read_bytes()[:100])
    return f"{found[0][0]}.offset"


@violation("R16", "files")
def a_side_file_elsewhere(draw: Draw, path: Path) -> str | None:
    if not (found := _beside(path)):
        return None
    place, constant = found[0]
    _rewrite(path, constant["file"], draw.choice(("../secret", "/etc/passwd", "x/y.safetensors", "")))
    return f"{place}.file"


@violation("R16", "files")
def an_offset_before_the_file(draw: Draw, path: Path) -> str | None:
    if not (found := _beside(path)):
        return None
    place, constant = found[0]
    _rewrite(path, f'"offset": {constant["offset"]}', f'"offset": {draw.choice((-1, 2**62))}')
    return f"{place}.offset"


@violation("R16", "files")
def a_side_file_that_is_damaged(draw: Draw, path: Path) -> str | None:
    """Seen when the constant is used."""
    if not (found := _beside(path)):
        return None
    side, offset = path.with_name(found[0][1]["file"]), found[0][1]["offset"]
    raw = bytearray(side.read_bytes())
    raw[offset] ^= 1
    side.write_bytes(raw)
    return ""
