"""The text form round-trips for the catalogue: as captured, optimised, folded and as layers."""

import pytest
import torch

from catalogue import Entry, entries
from tests.texts import fault_of_reading
from torch_ir import extract_ir, optimize

_ENTRIES = list(entries())
_SAMPLE = _ENTRIES[::6]


def _fault(entry: Entry) -> str:
    torch.manual_seed(0)
    ir = extract_ir(entry.build(), entry.inputs(), kwargs=entry.kwargs(), strict=False)
    forms = {
        "captured": ir,
        "optimised": optimize(ir, "full")[0],
        "folded": ir.fold_blocks(),
        "layers": ir.at_level("module"),
    }
    return "".join(
        f"{entry.name}, {form}: {found}" for form, graph in forms.items() if (found := fault_of_reading(graph))
    )


@pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")
@pytest.mark.parametrize("entry", _SAMPLE, ids=lambda entry: entry.name)
def test_a_sample_of_models(entry: Entry) -> None:
    assert not _fault(entry)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")
@pytest.mark.parametrize("entry", _ENTRIES, ids=lambda entry: entry.name)
def test_every_model(entry: Entry) -> None:
    assert not _fault(entry)
