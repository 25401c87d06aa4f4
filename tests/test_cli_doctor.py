"""`torch-ir doctor` and `torch-ir completion`: installed extras work, or a row names the fix."""

import json
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from tests.command_line import ROOT, command, failure
from torch_ir.cli import main
from torch_ir.cli.dispatch import build_parser
from torch_ir.cli.machine.completion_scripts import SCRIPTS
from torch_ir.cli.machine.doctor_checks import CHECKUPS

BROKEN = {
    "safetensors.py": "raise OSError('libxyz.so.1: cannot open shared object file')",
    "openvino.py": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "onnx.py": "import a_part_that_is_not_there",
    "pygraphviz.py": "import time; time.sleep(60)",
    "timm.py": "import sys; print('hello'); sys.exit(3)",
}


def test_broken_extras_are_rows(tmp_path):
    """An import that raises, crashes, hangs or ends the process is one row with the command that fixes it."""
    for name, source in BROKEN.items():
        (tmp_path / name).write_text(source)
    found = {}
    for seconds, names in {"300": ("python", "safetensors", "openvino", "onnx", "timm"), "1": ("draw",)}.items():
        done = command("doctor", *names, "--time", seconds, "--json", PYTHONPATH=f"{tmp_path}:{ROOT}")
        assert done.stderr == ""
        record = json.loads(done.stdout)
        assert (done.returncode, record["ok"]) == (0, True)
        found |= {check["name"]: (check["state"], check["detail"], check["fix"]) for check in record["checks"]}
    assert found["python"][0] == "ok"
    assert found["safetensors"] == (
        "broken", "OSError: libxyz.so.1: cannot open shared object file", "pip install 'torch-ir[safetensors]'"
    )  # fmt: skip
    assert found["openvino"][:2] == ("broken", "its process crashed with SIGSEGV: invalid memory access")
    assert found["onnx"] == ("missing", "a_part_that_is_not_there is not installed", "pip install 'torch-ir[onnx]'")
    assert found["draw"][:2] == ("broken", "no answer in 1 s")
    assert found["timm"][:2] == ("broken", "its process exited with status 3 without a result")


def test_a_core_that_does_not_work_fails(tmp_path):
    """Without torch nothing can be captured: status 1."""
    (tmp_path / "torch.py").write_text("raise ImportError('wrong ELF class')")
    done = command("doctor", "torch", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].split(maxsplit=2) == ["torch", "broken", "ImportError: wrong ELF class"]
    assert done.stdout.endswith("to fix:\n  torch: pip install torch\n")


def test_what_is_installed_here_works(capsys):
    """Real actions: a picture is drawn, a graph written and read."""
    assert main(["doctor", "draw", "protobuf", "installation", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["checks"]
    assert [check["state"] for check in found] == ["ok"] * 3, found
    assert "did you mean 'draw'?" in failure(capsys, "doctor", "drwa")


def test_every_extra_has_a_row():
    """Each with the command that installs it; but for those that serve work on torch_ir itself."""
    extras = metadata.metadata("torch-ir").get_all("Provides-Extra") or []
    rows = {name: checkup.fix for name, checkup in CHECKUPS.items() if "torch-ir[" in checkup.fix}
    assert rows == {name: f"pip install 'torch-ir[{name}]'" for name in {*extras} - {"all", "dev", "docs", "fuzz"}}


@pytest.mark.parametrize("source", ["checkout", "wheel", "index", "nothing"])
def test_commands_name_what_was_installed(source, tmp_path):
    """Extras of the installed distribution, however it was installed; else those of the checkout that runs."""
    (tmp_path / "torch_ir").symlink_to(ROOT / "torch_ir")
    urls = {
        "checkout": {"url": "file:///home/me/torch%20ir", "dir_info": {"editable": True}},
        "wheel": {"url": "file:///tmp/torch_ir-0.1.0-py3-none-any.whl", "archive_info": {}},
    }
    if source != "nothing":
        record = tmp_path / "torch_ir-0.1.0.dist-info"
        record.mkdir()
        (record / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-ir\nVersion: 0.1.0\n")
        if source in urls:
            (record / "direct_url.json").write_text(json.dumps(urls[source]))
    program = (
        "import sys; sys.path[:] = [sys.argv[1], *(path for path in sys.path[1:] if 'site-packages' not in path)]\n"
        "from torch_ir.cli.machine.doctor_checks import CHECKUPS\n"
        "print(CHECKUPS['onnx'].fix, CHECKUPS['torch_ir'].fix, sep='\\n')"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    extra, again = done.stdout.splitlines()
    where = {"nothing": str(tmp_path)}.get(source, "torch-ir")
    assert extra == f"pip install '{where}[onnx]'"
    assert (
        again
        == "pip install --force-reinstall --no-deps "
        + {
            "checkout": "-e file:///home/me/torch%20ir",
            "wheel": "file:///tmp/torch_ir-0.1.0-py3-none-any.whl",
            "index": "torch-ir",
            "nothing": f"-e {tmp_path.as_uri()}",
        }[source]
    )


@pytest.mark.parametrize("shell", SCRIPTS)
def test_completion_prints_a_script_with_every_option(shell, capsys, tmp_path):
    """Every option of every command is in the script, and the shell parses it."""
    script = _script(shell, capsys, tmp_path)
    text = script.read_text()
    for name, parser in build_parser().verbs.choices.items():
        assert name in text
        for option in parser._option_string_actions:
            assert (
                f"-{'l' if option[:2] == '--' else 's'} {option.lstrip('-')}" if shell == "fish" else option
            ) in text
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)


def _script(shell, capsys, folder):
    assert main(["completion", shell]) == 0
    path = folder / f"script.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not here")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["in"], ["info"]),
        (["run", "model.json", "--back"], ["--backend"]),
        (["run", "model.json", "--backend", "o"], ["onednn", "onnxruntime", "openvino"]),
        (["optimize", "--level", ""], ["clean", "basic", "full"]),
        (["info", "--level", ""], ["module", "function", "aten"]),
        (["cost", "--by", "n"], ["node"]),
        (["info", "mod"], ["model.json"]),
        (["diff", "model.json", "mod"], ["model.json"]),
        (["completion", ""], list(SCRIPTS)),
        (["llm", "llm.json", "--form", ""], ["slots", "paged"]),
        (["weights", "ch"], ["check"]),
        (["info", "a "], ["a b.json"]),
        (["bench", "model.json", "--model", "mod"], ["model.json"]),
    ],
)
def test_bash_completes(words, found, tmp_path, capsys):
    """Commands, options, values and files, as bash requests them."""
    (tmp_path / "model.json").touch()
    (tmp_path / "a b.json").touch()
    quoted = " ".join(f"'{word}'" for word in ["torch-ir", *words])
    program = (
        f"source '{_script('bash', capsys, tmp_path)}'; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; "
        "$(complete -p torch-ir | sed 's/.*-F \\([^ ]*\\) .*/\\1/'); printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == found
