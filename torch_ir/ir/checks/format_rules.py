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
    "R2": "A file is refused before it can ask for more than its limits.",
    "R3": "JSON is strict: every key once, numbers that fit, whole characters.",
    "R4": "The header names the format and its version; keys are known, and of their kind.",
    "R5": "Dtypes, devices, layouts and other kinds are those of closed lists.",
    "R6": "Names follow a grammar, and whatever prints them escapes them.",
    "R7": "A fact that is stated twice is stated the same.",
    "R8": "Every name is defined once, before its use, and a graph has an effect.",
    "R9": "Operators are found among torch's registered schemas, and nowhere else.",
    "R10": "No operator reaches files, random state, modes or storage.",
    "R11": "Arguments and attributes are those that the operator takes.",
    "R12": "Shapes and dtypes are those that the operators give.",
    "R13": "A run fits into memory, by the sizes that are declared.",
    "R14": "Weights are not in the file, and are checked before a run.",
    "R15": "Constants are raw bytes of exact length.",
    "R16": "A side file is a plain file beside the graph's, of known size and digest.",
    "R17": "Equal graphs are equal bytes, and a digest shows damage.",
    "R18": "A file is written whole or not at all.",
    "R19": "Every error is typed, and names rule, path, node and the nearest fix.",
    "R20": "A file loads nothing, and running it leaves the process as it was.",
}
