"""A model that torch.export.save wrote: a `.pt2` file."""

from __future__ import annotations

from pathlib import Path

from torch_ir.cli.models.source import Source
from torch_ir.errors import CommandError, first_line


def find_program(text: str) -> Source:
    """Load an exported program; torch unpickles it, so the file must come from a trusted source."""
    if not Path(text).is_file():
        raise CommandError(f"no such file: {text}")
    import torch

    from torch_ir.capture.quiet import quiet

    try:
        with quiet():
            program = torch.export.load(text)
    except Exception as error:  # torch raises errors of any type for a damaged file
        raise CommandError(f"cannot read {text} as an exported program: {first_line(error)}") from None
    return Source(text, program.module, program)
