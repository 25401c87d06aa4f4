"""The folder of a sweep: settings in `sweep.json`, a row per model in `rows.jsonl`, graph files in `graphs/`.

Every row is synced to disk before the next one is written, and its graph before the row. After a kill, the models with
a row are done, and the others are not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_ir.errors import CommandError, SerializationError
from torch_ir.ir.files.atomic_write import plain_target, sync_folder, write_bytes, write_text
from torch_ir.ir.files.locks import try_lock
from torch_ir.ir.files.regular_file import IrregularFileError, open_regular, read_regular
from torch_ir.ir.json.json_text import decode_text, parse_json
from torch_ir.sweep.job import Outcome
from torch_ir.sweep.row import Row

SETTINGS, ROWS, GRAPHS = "sweep.json", "rows.jsonl", "graphs"
_SETTINGS_BYTES, _ROWS_BYTES = 1 << 20, 1 << 30  # rows of about a million models


class Journal:
    """A locked sweep folder; `rows` has the last row of each model that is done."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.rows: dict[str, Row] = {}
        try:
            (folder / GRAPHS).mkdir(parents=True, exist_ok=True)
            if (folder / GRAPHS).is_symlink():
                raise CommandError(f"{folder / GRAPHS} is a link; give another folder with -o")
            self._file = open_regular(folder / ROWS, os.O_RDWR | os.O_CREAT | os.O_APPEND, follow=False)
        except IrregularFileError as error:
            raise CommandError(f"{folder / ROWS} {error.strerror}; give another folder with -o") from None
        except OSError as error:
            raise CommandError(f"cannot write to {error.filename or folder}: {error.strerror}") from None
        try:
            if try_lock(self._file) is False:
                raise CommandError(f"another sweep is writing to {folder}; give this one another folder with -o")
            self._settle(settings)
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def add(self, outcome: Outcome) -> None:
        """Store the outcome of one model."""
        row = outcome.row
        path = self.folder / GRAPHS / f"{row.digest}.json"
        if outcome.graph is not None and not path.is_file():
            write_bytes(plain_target(path), outcome.graph)
        try:
            _write_all(self._file, json.dumps(row.to_record()).encode() + b"\n")
            os.fsync(self._file)
        except OSError as error:
            raise SerializationError(f"cannot write {self.folder / ROWS}: {error.strerror}") from None
        self.rows[row.key] = row

    def _settle(self, settings: Mapping[str, str]) -> None:
        """Write these settings, or check that they equal those of the folder."""
        path = self.folder / SETTINGS
        if not os.path.lexists(path):
            if os.fstat(self._file).st_size:
                raise CommandError(f"{self.folder / ROWS} exists, but {SETTINGS} does not; give another folder with -o")
            write_text(plain_target(path), json.dumps(dict(settings), indent=2) + "\n")
            sync_folder(self.folder)
            return
        begun = _read_json(path)
        for name in sorted({*begun, *settings}):
            if (then := begun.get(name)) != (now := settings.get(name)):
                raise CommandError(
                    f"{self.folder} was started with {name} {then or 'not given'}, now it is {now or 'not given'}; "
                    "use the same settings, or give another folder with -o"
                )

    def _read(self) -> None:
        """Read the rows, and remove an incomplete last row left by a kill."""
        path = self.folder / ROWS
        try:
            data = read_regular(path, _ROWS_BYTES, follow=False)
        except OSError as error:
            raise SerializationError(f"cannot read {path}: {error.strerror}; give another folder with -o") from None
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                row = Row.from_record(parse_json(decode_text(line, path)))
            except (SerializationError, TypeError, UnicodeError):
                raise SerializationError(f"line {number} of {path} is not a row of a sweep; delete it") from None
            self.rows[row.key] = row


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(path, _SETTINGS_BYTES, follow=False))
    except (ValueError, OSError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SerializationError(f"{path} was not written by a sweep; give another folder with -o")
    return found


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]
