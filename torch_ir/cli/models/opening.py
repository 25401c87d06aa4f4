"""Open a line of a sweep as a model, with capture and inputs as on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torch_ir.sweep.case import Case

if TYPE_CHECKING:
    from torch_ir.ir import IR
    from torch_ir.sweep.entry import Entry


def open_entry(entry: Entry, *, allow_code: bool = False) -> Case:
    """Return the model that a line names; only the user's own code is imported, or any with `allow_code`."""
    from torch_ir.cli.arguments.captured_model import capture
    from torch_ir.cli.arguments.dynamic_sizes import choose_sizes
    from torch_ir.cli.arguments.input_files import read_files
    from torch_ir.cli.arguments.input_specs import read_inputs
    from torch_ir.cli.arguments.input_values import graph_call
    from torch_ir.cli.arguments.size_specs import DimRange
    from torch_ir.cli.models.find import find_model

    arguments = argparse.Namespace(input=[*entry.input], dim=[*entry.dim], quiet=True, own_only=not allow_code)
    specs, dims = read_inputs(arguments)

    def inputs(ir: IR, seed: int) -> tuple[Any, Any]:
        sizes = choose_sizes(read_files(specs), dims)
        chosen = {name: DimRange(size, size) for name, size in sizes.items() if name in ir.symbols}
        return graph_call(ir, specs, chosen, seed)

    return Case(
        lambda: capture(entry.model, arguments).ir,
        lambda: find_model(entry.model, own_only=not allow_code).build(),
        inputs,
    )
