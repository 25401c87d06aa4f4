"""Injection: text with a meaning to terminals, browsers, Graphviz, Mermaid, spreadsheets or compilers."""

from pathlib import Path
from typing import Any

from tests.hostile_files.case import Family, Make
from tests.hostile_files.documents import changed, edited

FAMILY = Family("labels")
_TERMINAL = {
    "colours": "\x1b[31mred",
    "window title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://example.org\x1b\\here",
    "carriage return": "fine\rbad",
    "backspaces": "fine\x08\x08\x08\x08bad",
    "newline": "fine\nbad",
    "C1 controls": "\x9b31mred",
    "C1 string": "\x90evil\x9c",
    "next line": "fine\x85bad",
    "line separator": "fine\u2028bad",
    "bidi override": "abc\u202egnp.exe",
    "bidi isolate": "a\u2066b\u2069",
    "zero width": "a\u200bb\ufeff",
    "tags": "a\U000e0041b",
}
# invalid in node names, and never printed
for name, text in _TERMINAL.items():
    FAMILY.refused(f"name with {name}", changed("nodes[4].name", text), "R6", r"\$\.nodes\[4\].*")
for name, text in _TERMINAL.items():
    FAMILY.refused(f"model name with {name}", changed("model_name", text), "R6", r"\$\.model_name")

_ALL = "".join(_TERMINAL.values())
_PLACES = {
    "operator": "nodes[1].op_type",
    "module": "nodes[0].module",
    "class": "nodes[0].module_class",
    "source line": "nodes[0].source",
    "argument": "nodes[1].attrs.@",
    "weight": "params.p_fc_weight.tied[0]",
    "version of torch": "pytorch_version",
    "class in the table of modules": "modules.fc",
    "path in the table of modules": "modules.@",
    "function that the model called": "nodes[0].function",
    "module around": "nodes[0].outer[0]",
    "origin": "nodes[0].origins[0]",
    "fixed layout": "fixed_layout",
    "axis of the mesh": "mesh.@",
    "symbol": "symbols.@",
    "function": "functions.@",
}


def _put(path: str, text: str) -> Make:
    """The document with a text at a place, or as a key where the path ends in `@`."""

    def edit(found: dict[str, Any]) -> None:
        *outer, last = path.replace("]", "").replace("[", ".").split(".")
        place: Any = found
        for part in outer:
            place = place[int(part)] if part.isdigit() else place.setdefault(part, [] if last == "0" else {})
        if last == "@":
            place[text] = place.get("fc", place.get("batch", place.get("body", 1)))
        elif isinstance(place, list):
            place[:] = [text]
        else:
            place[last] = text

    return edited(edit)


for name, path in _PLACES.items():
    FAMILY.refused(f"controls in the {name}", _put(path, _ALL), "R6", r"\$.*")


def _expression(text: str) -> Make:
    return changed("constraints[0]", f"batch{text}> 0")


FAMILY.refused("module around without a call", _put("nodes[0].outer[0]", "block"), "R4", r"\$\.nodes\[0\]\.outer\[0\]")
FAMILY.refused("controls in an expression", _expression("\x85\u2028\r"), "R[16]", r"\$\.constraints\[0\]")

_MEANT = {
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "entities": "&lt;script&gt;&#60;b&#62;#quot;",
    "Mermaid directive": '%%{init: {"securityLevel": "loose"}}%%',
    "Mermaid click": 'x"]; click x call alert(1)',
    "Mermaid end": "end",
    "Markdown": "``` [x](javascript:alert(1)) ![y](http://example.org/z)",
    "DOT": '"]; evil [URL="javascript:alert(1)"]; a [label="',
    "DOT HTML": "</td></tr></table>> ] evil [ href=<x>",
    "formula": "=cmd|'/C calc'!A0",
    "formula with @": "@SUM(1+1)*cmd|' /C calc'!A0",
    "Python": '"""); import os; os.system("touch pwned") #',
    "Python newline": "x\\\nimport os\nos.system('touch pwned')",
    "MLIR": '"} : () -> () "evil.op"() {a = "',
    "format string": "{0.__class__.__mro__} %s %n %(x)s",
    "shell": "$(touch pwned) `touch pwned`; touch pwned",
    "rich markup": "[bold red]x[/bold red][link=http://example.org]y[/link]",
}


def _everywhere(text: str) -> Make:
    """The document with a text wherever any text may stand."""

    def edit(found: dict[str, Any]) -> None:
        line = text.replace("\n", " ")
        found["model_name"] = line
        linear, add, call, *_ = found["nodes"]
        linear.update(module=line, module_class=line, source=line)
        add["op_type"] = f"my.{line}.default"
        key = f"a{line.replace('.', '_')}"
        add["attrs"] = {key: text, "text": text, "list": [text, {"$dtype": "float32"}], "table": {key: text}}
        call["op_type"] = line
        found["params"]["p_fc_weight"]["tied"] = [line]
        found["modules"] = {"": line, line: line}
        found["extensions"] = {text: {text: text}}
        found["output_tree"] = {
            "tree": {"$branch": "dict", "items": [{"$tensor": 0}, text], "keys": [text, "b"], "type": line}
        }

    return edited(edit)


for name, text in _MEANT.items():
    FAMILY.shown(name, _everywhere(text))


def _strings(folder: Path) -> Path:
    """Control characters in free text: attributes, extensions, keys of outputs."""
    return edited(lambda found: (
        found["nodes"][1].update(op_type="my.op.default", attrs={"text": _ALL, "list": [_ALL], "table": {"key": _ALL}}),
        found.update(extensions={_ALL: _ALL}),
        found.update(output_tree={"tree": {"$branch": "dict", "items": [{"$tensor": 0}, _ALL], "keys": [_ALL, "b"]}}),
    ))(folder)  # fmt: skip


FAMILY.shown("controls in texts that are values", _strings)
