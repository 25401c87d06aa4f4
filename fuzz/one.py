"""Fuzz one target, `python -m fuzz.one NAME [options of libFuzzer] FOLDER`, or run one file instead of the folder."""

import hashlib
import random
import sys

import atheris

with atheris.instrument_imports(
    include=[
        "torch_ir.analysis", "torch_ir.explorer", "torch_ir.formats", "torch_ir.ir", "torch_ir.passes",
        "torch_ir.rewrite", "torch_ir.run.stored", "torch_ir.safety",
    ]
):  # fmt: skip
    from fuzz.targets import CURRENT, FOLDER, TARGETS

from tests.damage.kinds import KINDS, damaged


def main() -> None:
    name = sys.argv.pop(1)
    target, crashes = TARGETS[name], FOLDER / name / "crashes"
    seeds = target.seeds()

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        """Mutate with libFuzzer half of the time, else by lines, tokens, numbers and keys."""
        chance = random.Random(seed)
        if not data or chance.random() < 0.5:
            changed: bytes = atheris.Mutate(data, max_size)
            return changed
        return damaged(data, chance.choice(seeds), chance.choice(list(KINDS)), chance)[:max_size]

    current = FOLDER / name / CURRENT

    def check(data: bytes) -> None:
        current.write_bytes(data)  # for a crash that ends the process at once
        try:
            target.check(data)
        except BaseException:  # libFuzzer keeps it as well, but not when other libraries end badly
            crashes.mkdir(parents=True, exist_ok=True)
            (crashes / f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)
            raise

    atheris.Setup(sys.argv, check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
