"""Files that are not one strict JSON document in UTF-8."""

import gzip
import io
import pickle
import zipfile
import zlib

from tests.hostile_files.case import Family
from tests.hostile_files.documents import replaced, written
from tests.hostile_files.documents import valid_text as valid

FAMILY = Family("malformed JSON")
_WHOLE = r"\$?"  # the text as a whole has no place, or the root


def _zip() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("model.json", valid())
    return target.getvalue()


def _with_lists(depth: int) -> bytes:
    return valid().encode().replace(b'"alpha": 1', b'"alpha": ' + b"[" * depth + b"]" * depth)


_GZIP = gzip.compress(valid().encode(), mtime=0)


class _Calls:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("unpickled",)


for name, content, rule in [
    ("empty file", b"", "R3"),
    ("blank file", b" \n\t\n", "R3"),
    ("one NUL byte", b"\0", "R3"),
    ("BOM", b"\xef\xbb\xbf" + valid().encode(), "R1"),
    ("UTF-16", valid().encode("utf-16"), "R1"),
    ("UTF-16 without BOM", valid().encode("utf-16-le"), "R3"),
    ("UTF-32", valid().encode("utf-32"), "R1"),
    ("Latin-1", valid().replace("Net", "N\xe9t").encode("latin-1"), "R1"),
    ("overlong UTF-8", valid().encode().replace(b"Net", b"N\xc0\xafet"), "R1"),
    ("surrogates in UTF-8", valid().encode().replace(b"Net", b"\xed\xa0\x80"), "R1"),
    ("gzip, cut short", _GZIP[:-100], "R1"),
    ("gzip without its trailer", _GZIP[:-8], "R1"),
    ("gzip with a wrong checksum", _GZIP[:-8] + bytes(4) + _GZIP[-4:], "R1"),
    ("gzip with a wrong length", _GZIP[:-4] + bytes(4), "R1"),
    ("gzip with data after it", _GZIP + b"\n", "R1"),
    ("gzip twice in one file", _GZIP * 2, "R1"),
    ("gzip of a picture", gzip.compress(b"\x89PNG\r\n\x1a\n"), "R1"),
    ("gzip of nothing", gzip.compress(b""), "R3"),
    ("the first two bytes of gzip", _GZIP[:2], "R1"),
    ("zlib", zlib.compress(valid().encode()), "R1"),
    ("zip archive", _zip(), "R1"),
    ("pickle", pickle.dumps(_Calls()), "R1"),
    ("pickle of protocol 0", pickle.dumps(_Calls(), protocol=0), "R3"),
    ("Python code", b"__import__('os').system('true')\n", "R3"),
    ("YAML with a tag", b"!!python/object/apply:os.system ['true']\n", "R3"),
    ("JavaScript around it", b"var model = " + valid().encode(), "R3"),
    ("comments", valid().encode().replace(b"{", b"{ // a comment\n", 1), "R3"),
    ("trailing comma", b'{"format": "torch-ir",}', "R3"),
    ("single quotes", b"{'format': 'torch-ir'}", "R3"),
    ("two documents", valid().encode() * 2, "R3"),
    ("trailing data", valid().encode() + b"\0" * 64, "R3"),
    ("cut short", valid().encode()[:-20], "R3"),
    ("cut short in a string", valid().encode()[:200], "R3"),
    ("raw newline in a string", valid().encode().replace(b'"Net"', b'"N\net"'), "R3"),
    ("NUL byte in a string", valid().encode().replace(b'"Net"', b'"N\0et"'), "R3"),
    ("bad escape", valid().encode().replace(b'"Net"', b'"N\\xet"'), "R3"),
    ("a list", b"[1, 2]", "R1"),
    ("a string", b'"torch-ir"', "R1"),
    ("null", b"null", "R1"),
    ("10^6 open lists", b"[" * 10**6, "R2"),
    ("10^6 open objects", b'{"a":' * 10**6, "R2"),
    ("10^6 nested lists in an attribute", _with_lists(10**6), "R2"),
    ("101 levels", _with_lists(98), "R2"),
]:  # fmt: skip
    FAMILY.refused(name, written(content), rule, _WHOLE)

for name, old, new in [
    ("NaN", '"alpha": 1', '"alpha": NaN'),
    ("Infinity", '"alpha": 1', '"alpha": -Infinity'),
    ("key twice", '"model_name": "Net"', '"model_name": "Net", "model_name": "Other"'),
    ("key twice in a node", '"alpha": 1', '"alpha": 1, "alpha": 2'),
    ("key twice, spelled by escapes", '"alpha": 1', '"alpha": 1, "\\u0061lpha": 2'),
    ("2^63", '"alpha": 1', '"alpha": 9223372036854775808'),
    ("-2^63 - 1", '"alpha": 1', '"alpha": -9223372036854775809'),
    ("million-digit integer", '"alpha": 1', '"alpha": ' + "9" * 10**6),
    ("1e999", '"alpha": 1', '"alpha": 1e999'),
    ("exponent of a million digits", '"alpha": 1', '"alpha": 1e' + "9" * 10**6),
    ("half a surrogate pair in a value", '"model_name": "Net"', '"model_name": "\\ud800"'),
    ("half a surrogate pair in a key", '"alpha": 1', '"alpha": 1, "\\udc00": 2'),
]:
    FAMILY.refused(name, replaced(old, new), "R3", _WHOLE)
