"""The rules of the file format, by the number in `error.rule`.

A file that violates several rules is reported under the first. The structural reader and `check` enforce what needs no
operator schema; `torch_ir.load_ir` and `validate_ir` enforce the rest.

R1   not a text or message at all, damaged gzip data, a byte order mark, an expression that does not parse
R2   any field of `Limits`, and the fixed depths of values, functions and expressions
R3   JSON that is not strict: duplicate keys, numbers beyond 64 bits, half of a surrogate pair
R4   another format or version; a key that is unknown, missing, or of the wrong type
R5   an unknown dtype, device, layout, memory format, kind of weight or container, placement or tag
R6   an invalid name
R7   two contradicting statements: shapes, producers, argument counts, tables of weights, structures
R8   a duplicate or undefined name of a tensor, node, argument, weight, symbol or function; a graph without effect
R11  an invalid argument or attribute
R15  values of a constant that do not match its shape and dtype
R16  a side file that is not a regular file of the stated name, size and contents
R17  a digest mismatch, or a graph that cannot be written
R18  a file that could not be written completely
"""

from __future__ import annotations

RULES: dict[str, str] = {
    "R1": "A file is data only: one UTF-8 JSON document, plain or gzip, or one protobuf message; no code.",
    "R2": "A file that exceeds its limits is refused before it can use the resources.",
    "R3": "JSON is strict: no duplicate keys, no numbers out of range, no invalid Unicode.",
    "R4": "The header names the format and its version; keys are known and have the right types.",
    "R5": "Dtypes, devices, layouts and other kinds are from closed lists.",
    "R6": "Names follow a grammar, and are escaped wherever they are printed.",
    "R7": "Redundant statements agree.",
    "R8": "Every name is defined once, before its use, and a graph returns or changes something.",
    "R9": "Operators are looked up only among torch's registered schemas.",
    "R10": "No operator accesses files, random state, modes or storage.",
    "R11": "Arguments and attributes match the operator's schema.",
    "R12": "Shapes and dtypes match what the operators return.",
    "R13": "A run fits into memory, by the declared sizes.",
    "R14": "Weights are not in the file, and are checked before a run.",
    "R15": "Constants are raw bytes of exact length.",
    "R16": "A side file is a regular file beside the graph's, of stated size and digest.",
    "R17": "Equal graphs have equal bytes, and a digest detects damage.",
    "R18": "Files are written atomically.",
    "R19": "Every error is typed, and names rule, path, node and the nearest fix.",
    "R20": "A file imports nothing, and running it leaves the process unchanged.",
}
