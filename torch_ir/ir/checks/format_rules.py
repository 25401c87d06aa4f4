"""The rules of the file format, by the number that an error carries in `error.rule`.

What breaks several rules is said to break the first. Where a rule has a part that needs no operator schema, the
structural reader and `check` hold it; `torch_ir.load_ir` and `validate_ir` hold the rest.

R1   no text or no message at all, damaged gzip data, a byte order mark, an expression outside the closed language
R2   any field of `Limits`, and the fixed depths of values, functions and expressions
R3   JSON that is not strict: keys that repeat, numbers beyond 64 bits, half of a surrogate pair
R4   another format or version; a key that is unknown, missing, or of the wrong kind
R5   a dtype, device, layout, memory format, kind of weight or container, placement or tag that is in no list
R6   a name that cannot be one
R7   two statements of one fact that differ: shapes, producers, argument counts, tables of weights, structures
R8   a name that is defined twice or used before, of a tensor, node, argument, weight, symbol or function; no effect
R11  an argument or attribute that no operator could be given
R15  values of a constant that are not exactly those of its shape and dtype
R16  a side file that is not a plain file of that name, size and contents
R17  text that is not what its digest says, or a graph that cannot be written
R18  a file that could not be written whole
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
