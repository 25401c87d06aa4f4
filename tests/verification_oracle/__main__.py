import sys

from tests.verification_oracle.sweep import CORRUPTED, names, sweep

found = sweep(dict.fromkeys(names(), int(sys.argv[1]) if len(sys.argv) > 1 else CORRUPTED))
print(*found.false_passes, *found.false_failures, sep="\n")
print(*(f"{label}: {figure}" for label, figure in found.rows().items()), sep="\n")
