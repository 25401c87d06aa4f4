"""Kinds of corruption: accidental changes of bytes, and edits of tokens by people and programs."""

import random
import re
from collections.abc import Callable, Iterator

Damage = Callable[[bytes, bytes, random.Random], bytes]  # a file, another of its kind, and chance
KINDS: dict[str, Damage] = {}
JUNK = ["null", "true", "-1", "0", "1.5", '""', '"x"', "[]", "{}", "[[1]]", '{"$int": "5"}']
_NO_JSON = ["1e999", "NaN", '"\\ud800"']
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.\w]+|[][{}:,]')
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_KEY = re.compile(rb'"([^"\\]+)"(?=\s*:)|\b(\w+)(?=\s*=)')
_NUMBERS = [b"-1", b"0", b"1", b"2", b"1.5", b"4294967296", b"9223372036854775807", b"9223372036854775808", b"1e308"]
_SECTOR = 512  # bytes that a disk writes at once


def damaged(content: bytes, other: bytes, kind: str, chance: random.Random) -> bytes:
    """A file that one kind of damage was done to; where there is nothing for it to be done to, a bit is flipped."""
    try:
        return KINDS[kind](content, other, chance)
    except IndexError:  # a choice of nothing
        return flip_a_bit(content, other, chance)


def every_cut_and_flip(content: bytes) -> Iterator[bytes]:
    """The file cut at each byte, and with each bit flipped."""
    for length in range(len(content)):
        yield content[:length]
    for bit in range(8 * len(content)):
        broken = bytearray(content)
        broken[bit // 8] ^= 1 << bit % 8
        yield bytes(broken)


def _kind(damage: Damage) -> Damage:
    KINDS[damage.__name__.replace("_", " ")] = damage
    return damage


def _range(content: bytes, chance: random.Random) -> tuple[int, int]:
    """A block: of some bytes, of some lines' length, or of any length."""
    start = chance.randrange(len(content) + 1)
    longest = chance.choice((1, 8, 64, _SECTOR, len(content)))
    return start, min(len(content), start + chance.randint(1, max(1, longest)))


def _replaced(content: bytes, found: re.Match[bytes], new: bytes) -> bytes:
    return content[: found.start()] + new + content[found.end() :]


# -- accidents --------------------------------------------------------------------------------------------------------


@_kind
def cut(content: bytes, other: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


@_kind
def lose_the_beginning(content: bytes, other: bytes, chance: random.Random) -> bytes:
    return content[chance.randrange(len(content)) + 1 :]


@_kind
def flip_a_bit(content: bytes, other: bytes, chance: random.Random) -> bytes:
    broken = bytearray(content)
    broken[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(broken)


@_kind
def change_bytes(content: bytes, other: bytes, chance: random.Random) -> bytes:
    broken = bytearray(content)
    for _ in range(chance.choice((1, 2, 8))):
        broken[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(broken)


@_kind
def insert_a_block(content: bytes, other: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + chance.randbytes(chance.choice((1, 4, 64))) + content[at:]


@_kind
def remove_a_block(content: bytes, other: bytes, chance: random.Random) -> bytes:
    start, stop = _range(content, chance)
    return content[:start] + content[stop:]


@_kind
def repeat_a_block(content: bytes, other: bytes, chance: random.Random) -> bytes:
    start, stop = _range(content, chance)
    return content[:stop] + content[start:]


@_kind
def lose_power(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """Sectors that were allocated, but never written, are zero."""
    start = chance.randrange(len(content)) // _SECTOR * _SECTOR
    stop = min(len(content), chance.choice((start + _SECTOR, len(content))))
    return content[:start] + bytes(stop - start) + content[stop:]


@_kind
def empty(content: bytes, other: bytes, chance: random.Random) -> bytes:
    return chance.choice((b"", b"\n", bytes(len(content))))


@_kind
def write_twice(content: bytes, other: bytes, chance: random.Random) -> bytes:
    return content + chance.choice((content, other))


@_kind
def splice_another_file(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """A piece of another file of this kind, as after mixed-up sectors or a merge that went wrong."""
    start, stop = _range(content, chance)
    first, last = _range(other, chance)
    return content[:start] + other[first:last] + content[stop:]


# -- edits ------------------------------------------------------------------------------------------------------------


@_kind
def swap_lines(content: bytes, other: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    one, two = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    return b"\n".join(lines)


@_kind
def lose_or_borrow_a_line(content: bytes, other: bytes, chance: random.Random) -> bytes:
    lines, theirs = content.split(b"\n"), other.split(b"\n")
    lines[chance.randrange(len(lines))] = chance.choice((chance.choice(theirs), chance.choice(lines), b""))
    return b"\n".join(lines)


@_kind
def edit_tokens(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """One or two tokens are replaced, dropped, doubled, cut, or exchanged for another."""
    for _ in range(chance.choice((1, 1, 2))):
        tokens = list(_TOKEN.finditer(content))
        token, second = chance.choice(tokens), chance.choice(tokens)
        junk = chance.choice(JUNK + _NO_JSON).encode()
        new = chance.choice((junk, second[0], b"", token[0] + b"," + token[0], token[0][:-1]))
        content = _replaced(content, token, new)
    return content


@_kind
def edit_a_number(content: bytes, other: bytes, chance: random.Random) -> bytes:
    found = chance.choice(list(_NUMBER.finditer(content)))
    return _replaced(content, found, chance.choice([*_NUMBERS, found[0] + b"0", found[0][:-1], b"-" + found[0]]))


@_kind
def rename_a_key(content: bytes, other: bytes, chance: random.Random) -> bytes:
    keys = list(_KEY.finditer(content))
    found = chance.choice(keys)
    name = chance.choice([*_KEY.finditer(other), *keys])[0].strip(b'"')
    new = chance.choice((name, found[0].strip(b'"') + b"s", found[0].strip(b'"')[:-1], b""))
    return _replaced(content, found, b'"' + new + b'"' if found[1] is not None else new)


@_kind
def change_line_ends(content: bytes, other: bytes, chance: random.Random) -> bytes:
    return content.replace(b"\n", chance.choice((b"\r\n", b"\r", b" ", b"\n\n")))


@_kind
def change_the_encoding(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """Decode the file in one encoding and write another, as an editor might."""
    text = content.decode(chance.choice(("utf-8", "latin-1")), errors="replace")
    return text.encode(chance.choice(("utf-8", "utf-8-sig", "utf-16", "utf-32", "ascii")), errors="replace")
