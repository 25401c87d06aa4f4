"""Every operator of torch's database as StableHLO, run with XLA on drawn and adversarial values, compared with eager.

python -m tests.stablehlo_models.operators [--dtypes float32,int64] [--every 8] [--part 0] [--samples 2]

Prints a line for each value set that differs, then the counts and the operators that have no rule.
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator

import torch

from tests.backend_sweep.cases import DTYPES, Case, operator_cases
from tests.backend_sweep.judging import CRASHED, REFUSED, ROUNDING, SAME, WRONG, in_float64, judge
from tests.stablehlo_models.unspecified import SKIPPED, UNSPECIFIED
from tests.stablehlo_models.xla import compiled, execute
from torch_ir.errors import ConversionError, UnsupportedOperatorsError
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.targets.write_stablehlo import to_stablehlo

NOT_COMPILED = "not compiled"


def verdicts(case: Case) -> Iterator[tuple[str, str, str]]:
    """Yield for each value set: its name, the verdict, and why."""
    try:
        text = to_stablehlo(case.ir).text
    except UnsupportedOperatorsError as error:
        yield "", REFUSED, ", ".join(row.op_type for row in error.missing)
        return
    except ConversionError as error:  # a dtype that StableHLO lacks
        yield "", REFUSED, str(error)
        return
    except Exception as error:  # a mistake of ours, to be listed with the others
        yield "", CRASHED, f"{type(error).__name__}: {error}"
        return
    try:
        executable = compiled(text)
    except (RuntimeError, ValueError) as error:  # XLA's own
        yield "", NOT_COMPILED, " ".join(str(error).split())[:300]
        return
    dtypes = [TORCH_DTYPES[tensor.dtype] for tensor in case.ir.returns.inputs]
    for name, (given, wanted) in case.runs.items():
        if name in SKIPPED:
            continue
        made = execute(executable, given, dtypes)
        yield name, *judge(wanted, made, in_float64(case.model, given))


def is_unspecified(case: Case) -> bool:
    """Whether a result may differ."""
    return case.operator in UNSPECIFIED or case.operator.startswith("fft.")  # infinity in a sum of products


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--samples", type=int, default=2)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for dtype in arguments.dtypes.split(","):
        for case in operator_cases(dtype, arguments.part, arguments.parts, arguments.samples, arguments.every):
            for values, verdict, why in verdicts(case):
                counts[verdict] += 1
                if verdict == REFUSED:
                    refused.update([why])
                elif verdict not in (SAME, ROUNDING) and not is_unspecified(case):
                    print(f"{case.name} [{values}] {verdict}: {why[:200]}", flush=True)
    print(dict(counts))
    for op_types, count in refused.most_common():
        print(f"  {op_types}  {count} cases")
    return int(counts[WRONG] + counts[CRASHED] > 0)


if __name__ == "__main__":
    sys.exit(main())
