"""No command uses the network, and none listens beyond the loopback interface."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.command_line import ROOT
from tests.damage.planning_files import DEVICE, PLAN
from tests.every_verb import write_adapter
from torch_ir.cli.dispatch import _GROUPS

_GUARD = ROOT / "tests" / "network_guard"
_NET = "import torch\n\n\ndef make():\n    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())\n"
_TARGET = "from torch_ir import Target\n\nnpu = Target('npu')\n"
_CONTRACT = 'ops = ["aten.relu"]\n'
# Every verb, in an order in which each finds its files.
_COMMANDS = """
extract net.py:make --input 2x4 -o model.json
info model.json
ops model.json
draw model.json
explore model.json
cost model.json
cost model.json --device device.json
memory model.json -o planned.json
memory planned.json --check
diff model.json model.json
check model.json
optimize model.json -o better.json
quantize model.json --recipe int8 -o quantized.json
sensitivity model.json --weights random
passes
run model.json --weights random
verify model.json net.py:make
weights check model.json weights.pt
golden model.json net.py:make -o pack
compare pack pack
convert model.json -o model.onnx
lower model.json --target npu.py:npu
coverage model.json --target npu.toml
plan model.json --devices 2 --memory 1GB -o plan.json
shard model.json --mesh dp=2 --place-input input=shard(0) -o rank.json
shard model.json --plan mesh.json -o shard.json
split model.json --stages 2 -o stages.json
split model.json --plan mesh.json -o parts.json
convert model.json --to chakra -o traces
completion bash
"""
_SLOW_COMMANDS = """
extract net.py:make --input 2x4 -o model.json
llm hf:llama?num_hidden_layers=1&hidden_size=16&intermediate_size=16&num_attention_heads=2&vocab_size=32 -o llm.json
llm llm.json
llm llm.json --lora adapter -o merged.json
llm llm.json --form slots -o slots.json
cost llm.json --function decode
train-step net.py:make --input 2x4 --target 2x4 --loss mse_loss -o step.json
bench model.json --repeat 1 --against onednn,onnxruntime,openvino,inductor,iree
sweep models.txt -o results --steps extract,cost
calibrate --minutes 0.001 --no-compiler -o device.json
doctor
"""
_RUN = """
import contextlib, io, sys
from torch_ir.cli.dispatch import main
for line in sys.stdin.read().splitlines():
    told = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            status = main(line.split())
        except SystemExit as error:
            status = error.code
    if status not in (0, None):
        print(line, '->', status, told.buffer.getvalue()[-300:])
"""


def _guarded(folder: Path, *command: str, told: str = "") -> tuple[str, list[str]]:
    """Run Python with the guard; return its output, and the sockets that the guard refused in it and its children."""
    log = folder / "refused.txt"
    paths = os.pathsep.join([str(_GUARD), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "NETWORK_GUARD": str(log)}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, input=told, capture_output=True, text=True, timeout=300
    )
    refused = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return done.stdout + done.stderr[-500:] * (done.returncode != 0), refused


def _filled(folder: Path) -> Path:
    mesh = {**PLAN, "axes": [{"axis": "tp", "ranks": 2, "rows": {"0": "colwise"}}], "stages": ["1"]}
    files = {
        "net.py": _NET, "npu.py": _TARGET, "npu.toml": _CONTRACT, "models.txt": "net.py:make --input 2x4\n",
        "device.json": json.dumps(DEVICE), "mesh.json": json.dumps(mesh),
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).write_text(text)
    write_adapter(folder / "adapter")
    torch.save({"0.weight": torch.zeros(4, 4), "0.bias": torch.zeros(4)}, folder / "weights.pt")
    return folder


def test_the_guard_refuses(tmp_path: Path) -> None:
    """The guard detects a look-up, a connection and a server, and allows the loopback interface."""
    program = """
import contextlib, socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
for use in (lambda s: s.bind(("0.0.0.0", 0)), lambda s: s.connect(("192.0.2.1", 80)),
            lambda s: socket.getaddrinfo("host.invalid", 80)):
    with socket.socket() as tried, contextlib.suppress(OSError):
        use(tried)
"""
    _, refused = _guarded(tmp_path, "-c", program)
    assert [line.split()[:2] for line in refused] == [
        ["socket.bind", "'0.0.0.0'"],
        ["socket.connect", "'192.0.2.1'"],
        ["socket.getaddrinfo", "'host.invalid'"],
    ]


@pytest.mark.parametrize(
    "commands", [_COMMANDS, pytest.param(_SLOW_COMMANDS, marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_no_verb_reaches_the_network(commands: str, tmp_path: Path) -> None:
    """Each command runs without opening a socket beyond this machine; `doctor` imports every optional package."""
    wrong, refused = _guarded(_filled(tmp_path), "-c", _RUN, told=commands.strip())
    assert wrong == ""
    assert refused == []


def test_every_verb_is_tried() -> None:
    """A new verb needs a command above."""
    tried = {line.split()[0] for line in (_COMMANDS + _SLOW_COMMANDS).splitlines() if line}
    assert tried == {name for group in _GROUPS.values() for name in group}


def test_openvino_sends_nothing(tmp_path: Path) -> None:
    """OpenVINO and the module of it that reports its use are imported without telemetry."""
    pytest.importorskip("openvino", reason="torch-ir[openvino] is not installed")
    program = (
        "from torch_ir.targets.openvino_package import import_openvino as load; load(); load('openvino.tools.ovc')"
    )
    told, refused = _guarded(tmp_path, "-c", f"{program}; import sys; print('openvino_telemetry' in sys.modules)")
    assert told == "False\n"
    assert refused == []


def test_only_one_place_imports_openvino() -> None:
    """An import elsewhere would start its telemetry."""
    found = [
        path.name
        for path in (ROOT / "torch_ir").rglob("*.py")
        if re.search(r"^\s*(import|from) openvino", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert found == []


def _other_packages() -> set[str]:
    """The modules of other libraries that torch_ir imports anywhere, also late and by name."""
    found = set()
    for path in (ROOT / "torch_ir").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
            elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("import_module"):
                found |= {named.value for named in node.args[:1] if isinstance(named, ast.Constant)}
    own = {"torch_ir", "openvino", *sys.stdlib_module_names}  # openvino has a test of its own
    return {name for name in found if name.partition(".")[0] not in own}


@pytest.mark.slow
def test_no_import_reaches_the_network(tmp_path: Path) -> None:
    """Each module of another library, in one process; those that are not installed are skipped."""
    names = sorted(_other_packages())
    assert {"transformers", "onnxruntime", "ray", "safetensors.torch", "triton"} <= set(names)
    program = f"""
import contextlib, importlib, warnings
warnings.simplefilter("ignore")
for name in {names}:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
print("done")
"""
    told, refused = _guarded(tmp_path, "-c", program)
    assert told.endswith("done\n")
    assert refused == []


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["threads", "processes"])
def test_a_dask_cluster_is_of_this_machine(processes: bool, tmp_path: Path) -> None:
    """Scheduler, workers and their pages listen on the loopback interface alone."""
    pytest.importorskip("distributed", reason="dask is not installed")
    program = f"""
from torch_ir.sweep.engines import dask_cluster
from distributed import Client
if __name__ == "__main__":
    with dask_cluster(1, processes={processes}) as cluster, Client(cluster) as client:
        print(client.submit(abs, -1).result())
"""
    (tmp_path / "program.py").write_text(program)
    told, refused = _guarded(tmp_path, "program.py")
    assert told == "1\n"
    assert refused == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the sockets of a process")
def test_local_ranks_listen_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo listens on the loopback interface, whatever the user's environment."""
    from torch_ir.sharding.local_ranks import LocalRanks

    other = next((name for _, name in socket.if_nameindex() if name != "lo"), "lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", other)
    with LocalRanks(1) as ranks:
        end = time.monotonic() + 60
        while not (found := _listening(ranks._servers[0].process.pid)) and time.monotonic() < end:
            assert ranks._servers[0].is_alive
            time.sleep(0.1)
    assert found
    assert all(address.startswith("0100007F:") for address in found)  # 127.0.0.1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the sockets of a process")
def test_a_ray_cluster_is_of_this_machine(tmp_path: Path) -> None:
    """All processes of a cluster that a sweep starts listen on the loopback interface alone."""
    pytest.importorskip("ray", reason="ray is not installed")
    program = """
import posixpath, sys
from torch_ir.sweep.engines import find_engine
engine = find_engine("ray", 1)
print(engine.executor.submit(posixpath.basename, "a/b").result(), flush=True)
sys.stdin.read()
engine.close()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"b\n"
        found = {one: _listening(one) for one in _family(process.pid)}
        assert process.communicate(timeout=120) == (b"", b"")
    assert len(found) > 3
    assert sum(map(len, found.values())) > 3
    loopback = ("0100007F:", "0000000000000000FFFF00000100007F:")  # 127.0.0.1, also as an address of IPv6
    assert [address for own in found.values() for address in own if not address.startswith(loopback)] == []


def _family(process: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [process]
    for one in found:
        found += children.get(one, [])
    return found


def _listening(process: int) -> list[str]:
    """The local addresses, in hexadecimal digits, on which a process listens."""
    sockets = set()
    for handle in Path(f"/proc/{process}/fd").iterdir():
        try:
            sockets.add(os.readlink(handle).removeprefix("socket:[").removesuffix("]"))
        except OSError:  # closed meanwhile
            continue
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in sockets]
