"""Every part of a device file, plan, adapter, map, memory plan, index or golden pack, replaced by hostile values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cpu_time import at_most
from tests.damage import planning_files, tensor_files  # noqa: F401 - the latter enters its kinds
from tests.damage.subject import FILES
from tests.hostile_documents import hostile_documents
from torch_ir.errors import TorchIRError


def _refusal(read: Callable[[], Any]) -> str | None:
    try:
        read()
    except TorchIRError as error:
        return str(error)
    return None


DOCUMENTS = [name for name, kind in FILES.items() if kind.make.__module__ == planning_files.__name__]
DOCUMENTS = [name for name in DOCUMENTS if name not in ("the tensors of an adapter", "a trace")]  # not JSON
DOCUMENTS += ["an index of shards", "the index of a golden pack without its digest"]
SECONDS = 5  # of computing, for one document
LONGEST = 600  # characters of an error


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_hostile_document_is_refused_or_read(name: str, every: int, tmp_path: Path) -> None:
    """In one sentence, and soon; what is read is read again to the same meaning."""
    subject = FILES[name].make(tmp_path)
    valid = subject.read()
    assert valid == subject.read()
    cases = list(hostile_documents(json.loads(subject.path.read_text())))
    assert len(cases) > 200
    refused = 0
    for label, content in cases[::every]:
        subject.path.write_bytes(content)
        with at_most(SECONDS, label):
            message = _refusal(subject.read)
            if message is None:
                assert subject.read() == subject.read(), label
        if message is not None:
            assert len(message) < LONGEST, (label, message[:1000])
            refused += 1
    assert refused > len(cases[::every]) / 2
