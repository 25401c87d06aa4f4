"""Process NUMBER of a target: `python -m fuzz.one NAME NUMBER [options of libFuzzer] FOLDER`, or a file to run it."""

import hashlib
import os
import random
import signal
import sys

import atheris

with atheris.instrument_imports(
    include=[
        "torch_ir.analysis", "torch_ir.entries", "torch_ir.explorer", "torch_ir.formats", "torch_ir.ir",
        "torch_ir.llm.peft_adapter", "torch_ir.passes", "torch_ir.planning.plan_file", "torch_ir.rewrite",
        "torch_ir.run.stored", "torch_ir.safety", "torch_ir.simulators",
    ]
):  # fmt: skip
    from fuzz.job import Job
    from fuzz.targets import COUNT, CURRENT, TARGETS

from tests.damage.kinds import KINDS, damaged

_SECONDS = 30  # of computing in this process, for one input


def main() -> None:
    name, number = sys.argv.pop(1), int(sys.argv.pop(1))
    target, job = TARGETS[name], Job(name, number)
    job.folder.mkdir(parents=True, exist_ok=True)
    seeds = target.seeds()
    count = os.open(job.folder / COUNT, os.O_WRONLY | os.O_CREAT)
    done = 0

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        """Mutate with libFuzzer half of the time, else by lines, tokens, numbers and keys."""
        chance = random.Random(seed)
        if not data or chance.random() < 0.5:
            changed: bytes = atheris.Mutate(data, max_size)
            return changed
        return damaged(data, chance.choice(seeds), chance.choice(list(KINDS)), chance)[:max_size]

    current = job.folder / CURRENT

    def check(data: bytes) -> None:
        nonlocal done
        done += 1
        os.pwrite(count, done.to_bytes(8, "little"), 0)
        current.write_bytes(data)  # for a crash that ends the process at once
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)  # a busy machine does not use it up
        try:
            target.check(data)
        except BaseException:  # libFuzzer keeps it as well, but not when other libraries end badly
            job.crashes.mkdir(parents=True, exist_ok=True)
            (job.crashes / f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)
            raise

    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    atheris.Setup(sys.argv, check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
