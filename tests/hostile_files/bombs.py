"""Decompression and expansion bombs, and large files without content."""

import base64
import json
import os
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.hostile_files.case import Family, Make
from tests.hostile_files.documents import Document, changed, edited, flat, node, one_node, read, typed, written
from torch_ir.ir.json.gzip_text import compress

FAMILY = Family("bombs")
_HUGE = 1 << 62
_BLOCK = 1 << 20


def _gzip_bomb(count: int, stated: int, content: bytes = b" ", checksum: int = 0) -> bytes:
    """Return `count` MiB of one byte as gzip, with the given length in its trailer."""
    deflate = zlib.compressobj(9, wbits=-15)
    block = deflate.compress(content * _BLOCK) + deflate.flush(zlib.Z_FULL_FLUSH)
    trailer = checksum.to_bytes(4, "little") + stated.to_bytes(4, "little")
    return compress(b"")[:10] + block * count + zlib.compressobj(wbits=-15).flush() + trailer


def _relu(name: str, source: str) -> Document:
    return node(name, "aten.relu.default", [read(source, 2)], [typed(name, 2)], ["self"])


def _bomb(count: int, stated: int, content: bytes = b" ") -> Make:
    return lambda folder: written(_gzip_bomb(count, stated, content), "model.json.gz")(folder)


for name, bomb in [
    ("2 GiB of blanks", _bomb(2048, 1 << 31)),
    ("4 GiB that states 0 bytes", _bomb(4096, 0)),
    ("2 GiB of brackets that states 128 MiB", _bomb(2048, 1 << 27, b"[")),
]:
    FAMILY.refused(f"gzip of {name}", bomb, "R2", r"")


def _blown_up(content: bytes, count: int = 32) -> Make:
    """`count` MiB of one byte as gzip with a right trailer: within the limit, and no graph."""

    def make(folder: Path) -> Path:
        checksum = zlib.crc32(content * _BLOCK * count)
        return written(_gzip_bomb(count, count * _BLOCK, content, checksum), "model.json.gz")(folder)

    return make


FAMILY.refused("gzip of 32 MiB of brackets", _blown_up(b"["), "R2", r"\$?")
FAMILY.refused("gzip of 32 MiB of blanks", _blown_up(b" "), "R3", r"\$?")


def _large(folder: Path) -> Path:
    file = folder / "model.json"
    file.touch()
    os.truncate(file, 1 << 40)  # and no byte on the disk
    return file


FAMILY.refused("a file of 1 TiB", _large, "R2", r"\$?")
for name, shape in [
    ("sizes of 2^62", [_HUGE, _HUGE]),
    ("2^60 elements", [1 << 30, 1 << 30]),
    ("sizes beyond int64 in all", [1 << 32] * 4),
    ("rank 10^5", [1] * 10**5),
    ("rank 129", [1] * 129),
]:
    FAMILY.refused(
        name, one_node("aten.relu.default", *shape), "R2", r"\$(\.graph_inputs|\.nodes|\.graph_outputs)\[0\].*"
    )

for name, text in [
    ("10^6 symbols in an expression", "+".join(["batch"] * 10**6)),
    ("9**9**9", "9**9**9"),
    ("2**64**64", "batch + 2**64**64"),
    ("10^5 brackets", "(" * 10**5 + "batch" + ")" * 10**5),
    ("10^4 brackets", "(" * 9999 + "batch" + ")" * 9999),
    ("101 negations", "-" * 101 + "batch"),
    ("number of 10^4 digits", "9" * 10**4),
]:
    FAMILY.refused(
        f"expression: {name}", changed("nodes[4].outputs[0].shape[0]", text), "R1|R2|R12", r"\$\.nodes\[4\].*"
    )

FAMILY.refused("restated: a size of 3,000 symbols", changed("nodes[0].outputs[0].shape[0]", "batch+" * 2999 + "batch"),
               "R7", r"\$\.nodes\[1\].*")  # fmt: skip
FAMILY.refused("name of 10^6 characters", changed("nodes[4].name", "a" * 10**6), "R[26]", r"\$\.nodes\[4\].*")
FAMILY.refused(
    "operator of 10^6 characters", changed("nodes[1].op_type", "aten." + "a" * 10**6), "R[26]", r"\$\.nodes\[1\].*"
)
FAMILY.refused("key of 10^6 characters", changed("params.p_fc_weight.tied", ["a" * 10**6]), "R[26]", r"\$.*")
FAMILY.bounded("10^5 origins of a node", changed("nodes[1].origins", [f"a{i}" for i in range(10**5)]))
FAMILY.refused(
    "1.1 million numbers in an attribute",
    changed("nodes[1].attrs.alpha", [0] * (10**6 + 10**5)),
    "R2|R11",
    r"\$\.nodes\[1\]\.attrs.*",
)
FAMILY.refused(
    "40 MB of base64",
    changed("constants.steps.base64", base64.b64encode(bytes(30 << 20)).decode()),
    "R15",
    r"\$\.constants\.steps.*",
)
FAMILY.refused(
    "constant of 2^62 elements", changed("constants.steps.shape", [_HUGE]), "R2|R15", r"\$\.constants\.steps.*"
)
FAMILY.refused("decimals of 90 levels",
               changed("constants.steps", {"dtype": "float32", "data": json.loads("[" * 90 + "]" * 90)}),
               "R[27]|R15", r"\$.*")  # fmt: skip
FAMILY.refused("10^6 rows that differ",
               changed("constants.steps", {"dtype": "float32", "data": [[1]] * 10**6 + [[1, 2]]}),
               "R15", r"\$\.constants\.steps.*")  # fmt: skip
FAMILY.refused(
    "10^5 unknown keys", changed("nodes[1].attrs", {f"key{i}": i for i in range(10**5)}), "R2|R11", r"\$\.nodes\[1\].*"
)


def _many(found: Document) -> None:
    """An unknown name among 20,000 similar ones."""
    found["nodes"][3:3] = [
        node(f"alpha_{i}", "aten.relu.default", [read("x", "batch", 4)], [typed(f"alpha_{i}", "batch", 4)], ["self"])
        for i in range(20_000)
    ]
    found["graph_outputs"][0]["name"] = "alpha_" + "x" * 80


FAMILY.refused("misspelled among 20,000", edited(_many), "R8", r"\$.*")


def _nested(depth: int, calls: int) -> Document:
    """Functions within functions, each of which calls the next one several times."""
    body = flat([_relu("y", "x")], [typed("x", 2)], [typed("y", 2)])
    for level in range(depth):
        nodes, last = [], "x"
        for index in range(calls):
            name = f"c{index}"
            nodes.append(
                node(name, "call", [read(last, 2)], [typed(name, 2)], ["x"], function={"$function": f"f{level}"})
            )
            last = name
        inner = {key: value for key, value in body.items() if key not in ("format", "version")}
        body = flat(nodes, [typed("x", 2)], [typed(last, 2)], functions={f"f{level}": inner})
    return body


FAMILY.refused("functions of 40 levels, called twice each", written(_nested(40, 2)), "R2", r".*")
FAMILY.bounded("functions of 20 levels, called twice each", written(_nested(20, 2)))
FAMILY.bounded("functions of 20 levels, called ten times each", written(_nested(20, 10)))
FAMILY.bounded("functions of 3 levels, called 200 times each", written(_nested(3, 200)))


def _chain(count: int) -> Document:
    names = ["x", *(f"r{i}" for i in range(count))]
    return flat([_relu(b, a) for a, b in pairwise(names)], [typed("x", 2)], [typed(names[-1], 2)])


def _filled(op_type: str, *shape: int, **attrs: Any) -> Document:
    made = node("made", op_type, [], [typed("made", *shape)], [], **attrs)
    options = {"dtype": {"$dtype": "float32"}, "layout": None, "device": None, "pin_memory": False}
    made["attrs"].update(options)
    summed = node("sum", "aten.sum.default", [read("made", *shape)], [typed("sum")], ["self"], dtype=None)
    return flat([made, summed], [typed("x", 2)], [typed("sum")])


FAMILY.bounded("a chain of 5,000 nodes", written(_chain(5_000)))
FAMILY.bounded(
    "aten.full of 2^36 elements", written(_filled("aten.full.default", 1 << 36, size=[1 << 36], fill_value=1.0))
)
FAMILY.bounded("aten.arange of 2^36 elements", written(_filled("aten.arange.default", 1 << 36, end=1 << 36)))
FAMILY.bounded("aten.eye of 2^18 rows", written(_filled("aten.eye.default", 1 << 18, 1 << 18, n=1 << 18)))


def _wide(count: int) -> Document:
    reads = [read("x", 2) for _ in range(count)]
    made = node(
        "cat", "aten.cat.default", reads, [typed("cat", 2 * count)], [f"tensors.{i}" for i in range(count)], dim=0
    )
    return flat([made], [typed("x", 2)], [typed("cat", 2 * count)])


FAMILY.bounded("one node with 5,000 inputs", written(_wide(5_000)))


def _powers(count: int) -> Document:
    """Each size is the square of the one before: 2^(2^count) in the end."""
    shapes = ["n"] + ["*".join(["n"] * 2**i) for i in range(1, count)]
    nodes, last = [], read("x", "n")
    for index, text in enumerate(shapes[1:]):
        made = typed(f"m{index}", text)
        nodes.append(node(f"m{index}", "my.square.default", [last], [made], ["x"]))
        last = read(f"m{index}", text)
    return flat(nodes, [typed("x", "n")], [{"name": last["name"], "shape": last["shape"], "dtype": "float32"}],
                symbols={"n": {"min": 1, "tensor": "x", "dim": 0}})  # fmt: skip


FAMILY.bounded("sizes that are powers of sizes", written(_powers(12)))
