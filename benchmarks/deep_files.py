"""Saving and loading the graph of a Llama of 126 layers, against torch.export."""

from benchmarks.files import DEEP, HEADER, WAYS, captured, compared, exported
from benchmarks.measure import table


def run() -> str:
    """Return times and sizes, as in the table of files."""
    return table(HEADER, compared(DEEP.name, captured(DEEP), WAYS, 1, exported(DEEP)))
