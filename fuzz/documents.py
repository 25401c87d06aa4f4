"""Documents of devices, plans, adapters, maps and traces: refused, or read to the same meaning twice."""

from pathlib import Path

from fuzz.target import Target
from tests.damage import planning_files  # noqa: F401 - it enters its kinds
from tests.damage.subject import FILES, Subject, new_folder
from torch_ir.errors import TorchIRError

_FOLDER = new_folder()
_KINDS = {
    "read_device": "a device file",
    "read_plan": "a plan of a mesh",
    "read_entries": "a map of entry points",
    "read_memory": "a memory plan",
    "read_llm": "a language model",
    "read_training": "facts of a training step",
    "read_adapter": "the configuration of an adapter",
    "read_traces": "a trace",
}


def _target(name: str, kind: str) -> Target:
    made: list[Subject] = []

    def subject() -> Subject:
        if not made:
            folder = Path(_FOLDER.name) / name
            folder.mkdir()
            made.append(FILES[kind].make(folder))
        return made[0]

    def seeds() -> list[bytes]:
        return [subject().path.read_bytes(), subject().other]

    def check(data: bytes) -> None:
        subject().path.write_bytes(data)
        try:
            found = subject().read()
        except TorchIRError:
            return
        assert subject().read() == found

    return Target(seeds, check)


DOCUMENTS = {name: _target(name, kind) for name, kind in _KINDS.items()}
