"""The result of capturing each hard model, as the table of docs/hard-models.md.

python -m tests.hard_models_table [--write]      print the table, or put it into its page
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

from tests.hard_models import Hard, cases
from tests.proof import verdict
from torch_ir import IR, extract_ir

_PAGE = Path(__file__).parents[1] / "docs" / "hard-models.md"
_BEGIN, _END = "<!-- table -->", "<!-- end of table -->"
_KEEPS_STATE = ("HiddenCache",)  # which another call finds changed
_STEPS = {
    "": "recorder",
    "torch.export": "export",
    "torch.export in strict mode": "strict",
    "recording": "recording",
}


def outcome(hard: Hard) -> str:
    """Return a row of the table: capture method, guards, placeholders, and whether it verifies."""
    torch.manual_seed(0)
    model = hard.model().eval()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        ir = IR.from_json(extract_ir(model, hard.args, kwargs=hard.kwargs, strict=False).to_json())
        told, every = outcome_of(ir, model, hard), ""
        if _guards(ir):
            joined = extract_ir(model, hard.args, kwargs=hard.kwargs, strict=False, explore=16)
            every = outcome_of(joined, model, hard)
    step = _STEPS[ir.extensions.get("captured_by", "")]
    return f"| {hard.name} | {hard.about} | {step} | {told} | {every} |"


def outcome_of(ir: IR, model: nn.Module, hard: Hard) -> str:
    """Return the open points of a graph; one without placeholders must verify."""
    gaps = [node.op_type for node in ir.all_nodes() if node.op_type.startswith("opaque.")]
    if gaps:
        return f"{len(gaps)} placeholder{'s' * (len(gaps) > 1)}: {', '.join(f'`{gap}`' for gap in gaps)}"
    report = verdict(ir, model, *hard.args, kwargs=hard.kwargs, probe=hard.name not in _KEEPS_STATE)
    if not report.is_valid:
        return f"**differs**: {report.error_message}"
    guards = _guards(ir)
    return f"verified; {guards} guard{'s' * (guards > 1)}" if guards else "verified"


def _guards(ir: IR) -> int:
    return sum(node.op_type.startswith("torch_ir.") for node in ir.all_nodes())


def page() -> str:
    """The rows that the documentation shows."""
    return _PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]


def main() -> None:
    """Print the table, or put it into its page."""
    rows = [outcome(hard) for hard in cases().values()]
    head = "| model | what is hard | captured by | the graph | with `explore=16` |\n|---|---|---|---|---|"
    table = "\n".join([head, *rows])
    if "--write" not in sys.argv:
        print(table)
        return
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{table}\n\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
