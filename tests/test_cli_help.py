"""Common behaviour of all commands: help with examples, one-line errors, statuses, no torch for inspection."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch

import torch_ir
from tests.command_line import ROOT, command, failure
from tests.test_draw import DOCUMENTED, mlp
from torch_ir.cli import main
from torch_ir.cli.dispatch import build_parser
from torch_ir.cli.verbs import info

PARSER = build_parser()
VERBS = list(PARSER.verbs.choices)
every_verb = pytest.mark.parametrize("verb", VERBS)
# verbs whose output is text or a picture for people, or a script
WITHOUT_JSON = {"draw", "visualize", "explore", "completion"}


@pytest.fixture
def file(tmp_path):
    mlp().save(tmp_path / "model.json")
    return str(tmp_path / "model.json")


def shown(capsys, *arguments: str) -> str:
    """The help that a command prints."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 0
    return capsys.readouterr().out


def refused(capsys, *arguments: str) -> str:
    """Return the last line of the output of an invalid command."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: torch-ir")
    return err.splitlines()[-1]


@every_verb
def test_help_shows_examples_that_are_understood(verb, capsys):
    """Each is a command that the parser accepts unchanged."""
    text = shown(capsys, verb, "--help")
    name = PARSER.verbs.choices[verb].prog
    lines = [line for line in (PARSER.verbs.choices[verb].epilog or "").splitlines()[1:] if line]
    assert f"\nexamples:\n  {name}" in text
    assert len(lines) > 1
    for line in lines:
        words = shlex.split(line.partition(" > ")[0].partition(" | ")[0])
        assert PARSER.parse_known_args(words[1:])[1] == [], line


_INLINE = re.compile(r"`torch-ir ([^`]+)`")
_TYPOS = {"--jsno"}  # on the page that shows how typos are answered


def test_commands_in_sentences_have_options_that_exist():
    """Commands in code blocks of pages are run; these are only named."""
    options = {verb: set(PARSER.verbs.choices[verb]._option_string_actions) | _TYPOS for verb in VERBS}
    sources = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("torch_ir/**/*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    used = [(path, found.split()) for path, text in texts.items() for found in _INLINE.findall(text)]
    unknown = [
        f"{path.relative_to(ROOT)}: torch-ir {verb} {word}"
        for path, (verb, *words) in used
        for word in words
        if verb in options and re.match("--?[a-z]", word) and word not in options[verb]
    ]
    assert len(used) > 100
    assert unknown == []


@every_verb
@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_terminal(verb, columns, capsys, monkeypatch):
    """Text is wrapped, and long examples are folded so that a shell reads them as one."""
    monkeypatch.setenv("COLUMNS", str(columns))
    text = shown(capsys, verb, "--help")
    assert [line for line in text.splitlines() if len(line) > columns and " " in line.strip()] == []
    unfolded = text.replace(" \\\n      ", " ")
    assert (PARSER.verbs.choices[verb].epilog or "-") in unfolded


@every_verb
def test_every_verb_is_in_a_group_and_in_the_documentation(verb, capsys):
    """The help of the program lists it with a description, and the reference has a section on it."""
    text = shown(capsys, "--help")
    name = PARSER.verbs.choices[verb].prog.rpartition(" ")[2]
    assert f"\n  {name}" in text
    pages = (ROOT / "docs" / "command-line.md").read_text()
    assert any(name in line.split(":")[0] for line in pages.splitlines() if line.startswith("### "))


@every_verb
def test_json_where_a_program_may_read_it(verb):
    assert ("--json" in PARSER.verbs.choices[verb]._option_string_actions) != (verb in WITHOUT_JSON)


def test_help_is_short_and_by_purpose(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, "--help")
    assert text.startswith("usage: torch-ir [-h] [--version] COMMAND ...\n")
    assert "{" not in text
    assert max(map(len, text.splitlines())) <= 80
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[:2] == ["capture a model:", "inspect a graph:"]
    assert main([]) == 2
    assert capsys.readouterr().out == text


def test_help_is_a_word_too(capsys):
    """`help VERB` is `VERB --help`."""
    assert shown(capsys, "help", "cost") == shown(capsys, "cost", "--help")
    assert shown(capsys, "help") == shown(capsys, "--help")
    assert "did you mean 'cost'?" in refused(capsys, "help", "cots")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inof", "x.json"], "torch-ir: error: unknown command 'inof'; did you mean 'info'?"),
        (["info", "x.json", "--jsn"], "torch-ir info: error: unknown option '--jsn'; did you mean '--json'?"),
        (["cost", "x.json", "--tpo=3"], "torch-ir cost: error: unknown option '--tpo'; did you mean '--top'?"),
        (["--versoin"], "torch-ir: error: unknown option '--versoin'; did you mean '--version'?"),
        (["check", "a", "b"], "torch-ir check: error: unexpected argument 'b'"),
        (["check", "a", "b\x1b[2J"], "torch-ir check: error: unexpected argument 'b\\x1b[2J'"),
        (
            ["cost", "x", "--by", "nod"],
            "torch-ir cost: error: argument --by: unknown choice 'nod'; did you mean 'node'?",
        ),
        (
            ["convert", "x", "-o", "y", "--to", "chakr"],
            "torch-ir convert: error: argument --to: unknown simulator 'chakr'; did you mean 'chakra'?",
        ),
        (
            ["convert", "x", "-o", "y", "--to", "onnx"],
            "torch-ir convert: error: argument --to: unknown simulator 'onnx'; expected one of chakra, scale-sim, "
            "scale-sim-gemm, zigzag, timeloop; the suffix of -o chooses other formats, as in -o model.onnx",
        ),
        (["info"], "torch-ir info: error: the following arguments are required: GRAPH"),
        (
            ["weights", "x.json", "w.pt"],
            "torch-ir weights: error: 'check' is missing before 'x.json'; write: torch-ir weights check x.json ...",
        ),
        (
            ["weights", "chekc", "x.json", "w.pt"],
            "torch-ir weights: error: argument check: unknown choice 'chekc'; did you mean 'check'?",
        ),
    ],
)
def test_mistakes_name_the_nearest_fix(arguments, message, capsys):
    assert refused(capsys, *arguments) == message


def test_an_unknown_command_is_told_what_there_is(capsys):
    """If no name is similar, all are listed."""
    assert "torch-ir: error: unknown command 'xyzzy'; expected one of extract, llm," in refused(capsys, "xyzzy")


def test_looking_never_imports_torch(tmp_path):
    """Help of every verb, and every verb that only reads: torch would cost seconds."""
    file = str(tmp_path / "model.json")
    torch_ir.extract_ir(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), strict=False).save(file)
    code = (
        "import sys, json\nfrom torch_ir.cli.dispatch import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    try:\n        status = main(words)\n"
        "    except SystemExit as end:\n        status = end.code\n"
        "    assert not status, words\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    looking = [
        ["info", file],
        ["ops", file],
        ["draw", file],
        ["cost", file],
        ["diff", file, file],
        ["completion", "zsh"],
    ]
    words = [["--help"], *([verb, "--help"] for verb in VERBS), *looking]
    done = subprocess.run([sys.executable, "-c", code, json.dumps(words)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_statuses_and_streams(file):
    version = command("--version")
    assert (version.returncode, version.stdout) == (0, f"torch-ir {torch_ir.__version__}\n")
    missing = command("info", "no such file.json")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "torch-ir: error: cannot read no such file.json: No such file or directory\n"


def test_one_verb_imports_only_its_own_file():
    """So that each starts as fast as it can."""
    code = "import sys; from torch_ir.cli.dispatch import build_parser; build_parser(word='info'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert "torch_ir.cli.verbs.info" in loaded
    assert not {"torch_ir.cli.verbs.bench", "torch_ir.ir", "json", "dataclasses"} & set(loaded)


def test_a_reader_that_leaves_is_no_error(file):
    pipe = subprocess.Popen(
        [sys.executable, "-m", "torch_ir", "draw", file],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    pipe.stdout.close()
    assert pipe.stderr.read() == b""
    pipe.stderr.close()
    pipe.wait()


def test_interrupting_gives_130(file, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", interrupted)
    assert main(["info", file]) == 130


def test_both_names_work(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [os.path.join("somewhere", "pytorch-ir")])
    assert main(["info", "nowhere.json"]) == 1
    assert capsys.readouterr().err.startswith("pytorch-ir: error: ")


def test_bad_files_are_named(capsys, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    assert "bad.json: $: not JSON" in failure(capsys, "info", str(tmp_path / "bad.json"))
    assert failure(capsys, "draw", str(tmp_path)) == f"{tmp_path} is a folder, not a graph file"


def test_the_old_name_of_a_verb_still_works(file, capsys):
    """`visualize` is `draw`."""
    assert main(["visualize", file]) == 0
    assert capsys.readouterr().out == DOCUMENTED + "\n"
