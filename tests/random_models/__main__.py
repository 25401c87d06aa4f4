"""python -m tests.random_models [COUNT]"""

import sys

import torch

from tests.random_models.sweep import swept

if __name__ == "__main__":
    torch.set_num_threads(1)
    found = swept(range(int(sys.argv[1]) if sys.argv[1:] else 100))
    print(*found.faults, sep="\n")
    print(f"{found.models} models: {found.exact} exact, {dict(found.refused)} refused, {len(found.faults)} wrong")
    sys.exit(bool(found.faults))
