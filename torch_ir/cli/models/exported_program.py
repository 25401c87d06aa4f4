"""A model that torch.export.save wrote: a `.pt2` file."""

from __future__ import annotations

from pathlib import Path

from torch_ir.cli.models.source import Source
from torch_ir.errors import CommandError, first_line


def find_program(text: str) -> Source:
    """The program in a file; torch unpickles it, so it must be from somebody whom the user trusts."""
    if not Path(text).is_file():
        raise CommandError(f"no such file: {text}")
    import torch

    from torch_ir.capture.quiet import quiet

    try:
        with quiet():
            program = torch.export.load(text)
    except Exception as error:  # torch raises whatever a damaged file leads it to
        raise CommandError(f"cannot read {text} as a program of torch.export: {first_line(error)}") from None
    return Source(text, program.module, program)
