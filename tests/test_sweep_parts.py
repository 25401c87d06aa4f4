"""Parts of a sweep that need no process: lists, the folder, tables, the page, and errors."""

import json
import shlex
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.browser import ABSENT, find, launched
from tests.command_line import failure
from tests.swept import journal
from torch_ir.cli.models.model_lists import tiny_transformers
from torch_ir.cli.models.opening import open_entry
from torch_ir.errors import CommandError, SerializationError
from torch_ir.llm.tiny_config import tiny
from torch_ir.sweep import Entry, Outcome, Plan, Row, find_engine, read_entries, sweep
from torch_ir.sweep.export_tables import write_parquet
from torch_ir.sweep.summary import summary
from torch_ir.sweep.sweep_folder import Journal

SETTINGS = {"steps": "extract", "versions": "torch 1"}
ROW = Row("net.py:Net", "ok", key="k1", digest="abc", nodes=3)


def test_a_list_names_a_model_per_line() -> None:
    """With inputs and sizes as on the command line, or as JSON; comments, empty lines and repetitions are nothing."""
    lines = """
        # models
        hf:llama?num_hidden_layers=2  -i "int64[1, 16]"   # a small one
        net.py:Net --input x=@file.npz#member --dim batch=1..4
        {"model": "hf:llama?num_hidden_layers=2", "input": ["int64[1, 16]"]}
    """
    assert read_entries(lines.splitlines()) == [
        Entry("hf:llama?num_hidden_layers=2", ("int64[1, 16]",)),
        Entry("net.py:Net", ("x=@file.npz#member",), ("batch=1..4",)),
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('net.py:Net -i "1x8', "line 1: the quotes do not match"),
        ("net.py:Net --output x", "line 1: unrecognized arguments: --output x; write it as MODEL"),
        ("net.py:Net -i", "line 1: argument -i/--input: expected one argument"),
        ('{"model": "a:B"', "line 1: not JSON"),
        ('{"modle": "a:B"}', "line 1: unknown key 'modle'; did you mean 'model'?"),
        ('{"input": []}', 'line 1: "model" is missing'),
        ('{"model": "a:B", "input": "1x8"}', "line 1: 'input' must be a list of strings"),
    ],
)
def test_a_bad_line_is_an_entry_that_says_so(line: str, told: str) -> None:
    """It becomes a row, and the lines after it are read."""
    bad, good = read_entries([line, "net.py:Net"])
    assert bad.error.startswith(told)
    assert good == Entry("net.py:Net")


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Rows are there again, the last of each model counts, and half a row is taken away."""
    with Journal(tmp_path, SETTINGS) as first:
        first.add(Outcome(ROW, b"{}"))
        first.add(Outcome(replace(ROW, key="k2", digest=None, status="failed")))
        first.add(Outcome(replace(ROW, key="k2", digest=None)))
    assert (tmp_path / "graphs" / "abc.json").read_bytes() == b"{}"
    whole = (tmp_path / "rows.jsonl").read_bytes()
    (tmp_path / "rows.jsonl").write_bytes(whole + b'{"model": "ne')
    with Journal(tmp_path, SETTINGS) as again:
        assert {key: row.status for key, row in again.rows.items()} == {"k1": "ok", "k2": "ok"}
        again.add(Outcome(replace(ROW, key="k3")))
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(whole)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4


def test_a_journal_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    """Other settings, another sweep at work, files that no sweep wrote: each is one sentence."""
    with Journal(tmp_path, SETTINGS), pytest.raises(CommandError, match="another sweep is writing to"):
        Journal(tmp_path, SETTINGS)
    with pytest.raises(CommandError, match="was started with versions torch 1, now it is torch 2; use the same"):
        Journal(tmp_path, {**SETTINGS, "versions": "torch 2"})
    (tmp_path / "rows.jsonl").write_text("3\n")
    with pytest.raises(SerializationError, match=r"line 1 of .* is not a row of a sweep"):
        Journal(tmp_path, SETTINGS)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(CommandError, match=r"rows\.jsonl exists, but sweep\.json does not"):
        Journal(tmp_path, SETTINGS)


@pytest.mark.parametrize(
    "fields",
    [
        '"key": []', '"key": {}', '"status": ["ok"]', '"status": null', '"seconds": "1"', '"seconds": NaN',
        '"seconds": true', '"nodes": 1208925819614629174706176', '"nodes": 1.5', '"diagnosis": "\\ud800"',
        '"max_diff": 1e999',
        '"model": 5', '"key": "k", "key": "l"', '"digest": ' + "[" * 1000,
    ],
)  # fmt: skip
def test_rows_of_wrong_types_are_refused(tmp_path: Path, fields: str) -> None:
    """Rows are data of a file that others may have written: tables and the page could not show them."""
    with Journal(tmp_path, SETTINGS):
        pass
    others = ", ".join(f'"{name}": "x"' for name in ("model", "status") if f'"{name}"' not in fields)
    (tmp_path / "rows.jsonl").write_text(f"{{{others}, {fields}}}\n")
    with pytest.raises(SerializationError, match=r"line 1 of .* is not a row of a sweep"):
        Journal(tmp_path, SETTINGS)


def test_the_page_shows_hostile_text_as_text() -> None:
    """No text of a model or an error ends its element, or changes the page's policy."""
    hostile = "</script><script>alert(1)</script><!--SCRIPT--><!--"
    page = summary([replace(ROW, model=hostile, diagnosis=hostile, status="failed")])
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data)[0]["model"] == hostile
    assert page.count("<script") == 2
    assert page.count("alert(1)") == 2
    assert "default-src 'none'; script-src 'sha256-" in page


@pytest.mark.skipif(find() is None, reason=ABSENT)
def test_the_page_filters_and_sorts_in_a_browser(tmp_path: Path) -> None:
    """A model's name is only ever text on the screen."""
    hostile = replace(
        ROW, model="<img src=x onerror=alert(1)>", status="failed", diagnosis="no <b>reason</b>", seconds=9
    )
    path = tmp_path / "summary.html"
    path.write_text(summary([ROW, hostile, replace(ROW, model="other.py:Net", seconds=3)]), encoding="utf-8")
    with launched() as browser:
        page, wrong = browser.new_page(), []
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(path.as_uri())
        names = page.locator("table >> nth=-1").locator("tbody td:first-child")
        assert names.all_inner_texts() == ["net.py:Net", hostile.model, "other.py:Net"]
        page.get_by_role("button", name="seconds").click()
        assert names.all_inner_texts() == [hostile.model, "other.py:Net", "net.py:Net"]
        page.get_by_role("button", name="ok 2").click()
        page.get_by_role("searchbox").fill("other")
        assert names.all_inner_texts() == ["other.py:Net"]
    assert wrong == []


def test_the_rows_are_a_parquet_table(tmp_path: Path) -> None:
    """Every column has its type, also where no row has a value."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert write_parquet([ROW, replace(ROW, nodes=None)], tmp_path)
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table.column("nodes").to_pylist() == [3, None]
    assert str(table.schema.field("max_diff").type) == "double"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--steps", "extract,verfy"], "; did you mean 'verify'?"),
        (["--steps", "cost"], "steps must be in the order extract, cost, optimize, verify"),
        (["--timeout", "0"], "--timeout must be more than 0, not 0"),
        (["--memory", "much"], "'much' is not a memory size"),
        (["--workers", "0"], "--workers must be at least 1, not 0"),
        (["--address", "tcp://x:1"], "--address needs --engine dask or ray"),
    ],
)
def test_options_that_cannot_be_are_one_sentence(options: list[str], told: str, tmp_path: Path, capsys) -> None:
    """Before any model is touched."""
    models = tmp_path / "models.txt"
    models.write_text("net.py:Net -i 1x8\n")
    assert told in failure(capsys, "sweep", str(models), "-o", str(tmp_path / "out"), *options)


def test_a_sweep_needs_models(tmp_path: Path, capsys) -> None:
    """A missing file, one that is not text, or without models, and no file at all."""
    path = tmp_path / "models.txt"
    assert "no models given" in failure(capsys, "sweep")
    assert "No such file" in failure(capsys, "sweep", str(path))
    path.write_bytes(b"\xff\xfe\x00")
    assert "it is not a text file" in failure(capsys, "sweep", str(path))
    path.write_text("# none yet\n")
    assert "names no model" in failure(capsys, "sweep", str(path))


def test_a_tiny_configuration_has_the_sizes_that_it_knows() -> None:
    """By its own names, and with those of the configurations inside it."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    assert tiny(transformers.GPT2Config())["n_layer"] == 2
    assert "num_experts" not in tiny(transformers.LlamaConfig())
    inside = tiny(transformers.LlavaConfig())["text_config"]
    assert (inside["model_type"], inside["num_hidden_layers"]) == ("llama", 2)


def test_the_list_of_transformers_is_one_that_a_sweep_reads() -> None:
    """Every line names one model and nothing else."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    lines = list(islice(tiny_transformers(), 20))
    assert [[entry.model] for entry in read_entries(lines)] == [shlex.split(line) for line in lines]


def test_what_was_not_ok_is_done_again_if_asked(tmp_path: Path) -> None:
    """And only then; the last row counts."""
    entries, plan = [Entry("lost", error="line 1: it names no model")], Plan(open_entry)
    for retry, written in ((False, 1), (False, 1), (True, 2)):
        rows = sweep(entries, tmp_path, plan, lambda: find_engine("local", 1), retry=retry)
        assert [row.status for row in rows] == ["refused"]
        assert len(journal(tmp_path)) == written


def test_what_makes_a_sweep_is_told_without_its_limits() -> None:
    """So that one may go on with more time or memory."""
    assert Plan(open_entry).settings().keys() == {"steps", "level", "seed", "versions"}


def test_an_engine_that_nobody_knows() -> None:
    """It is named, with the nearest one."""
    with pytest.raises(CommandError, match="unknown engine 'dsk'; did you mean 'dask'"):
        find_engine("dsk")
