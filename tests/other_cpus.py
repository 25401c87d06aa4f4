"""The tests that compute floats, as on other x86 processors and with other numbers of threads, for `make test-cpus`.

python -m tests.other_cpus [--only NAME] [PYTEST OPTIONS]

Sums have another order, and elementary functions other last digits, with other vector instructions. The variables limit
those of torch, MKL and oneDNN; a processor that lacks them all is not the same, but computes as these settings do.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_HERE = Path(__file__).parent
# What a test file has that compares computed floats.
_COMPARES = re.compile(
    r"\b(assert_close|allclose|equal|proved|optimized|prove|fault|compare|difference|run_page|max_diff)\b"
)
_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
_SSE4 = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "native-1": {"OMP_NUM_THREADS": "1"},
    "native-8": {"OMP_NUM_THREADS": "8"},
    "avx2-2": {**_AVX2, "OMP_NUM_THREADS": "2"},
    "sse4-1": {**_SSE4, "OMP_NUM_THREADS": "1"},
}


def files() -> list[str]:
    """The test files that compare computed floats."""
    found = sorted(_HERE.glob("test_*.py"))
    return [f"tests/{file.name}" for file in found if _COMPARES.search(file.read_text(encoding="utf-8"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SETTINGS, action="append", help="one of the settings (default: all)")
    options, arguments = parser.parse_known_args()
    failed = []
    for name in options.only or SETTINGS:
        print(f"{name}: {' '.join(f'{key}={value}' for key, value in SETTINGS[name].items())}", flush=True)
        command = [sys.executable, "-m", "pytest", *files(), *arguments]
        if subprocess.run(command, env={**os.environ, **SETTINGS[name]}, check=False).returncode:
            failed.append(name)
    print(f"failed with {', '.join(failed)}" if failed else "passed with all settings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
