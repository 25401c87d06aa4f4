"""Coverage of capture, conversion and verification, with every exception by name; writes docs/coverage.md.

python -m tests.coverage [--write]      run the sweeps; print or write the page, or list the rows that are wrong
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from tests.architectures import NEEDS_VALUES, NOT_CAPTURED, TABLES, architectures
from tests.architectures.sweep import REFUSED as ARCHITECTURE_REFUSED
from tests.architectures.sweep import extract, verify_in_fresh_process
from tests.forms import FAMILIES, forms
from tests.forms import higher_order as hops
from tests.forms.form import STAGES, UNBUILT, VERIFIED, Family
from tests.forms.sweep import carry
from tests.language_models import FIXED_PROMPT, language_models
from tests.language_models import KINDS as LANGUAGE_MODELS
from tests.language_models import NOT_CARRIED as NOT_GENERATING
from tests.language_models import carry as carry_language_model

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "coverage.md"


def page() -> str:
    """Return the page, from the tables alone; the sweeps check the tables."""
    return "\n".join([*_introduction(), *_counts(), *_forms_not_carried(), *_higher_order(), *_architectures()])


def _introduction() -> list[str]:
    packages = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in ("torch", "transformers", "torchao"))
    strict = " and ".join(f"`{form.name}`" for form in forms() if form.strict_export)
    return [
        "# Coverage",
        "",
        "Every row is a set of small models. Each model is captured, without weights if it can be built on meta; its",
        "graph is saved, loaded and run with the model's weights on several inputs, and compared with the model:",
        "results, changed inputs and state, after every call.",
        "",
        f"- *captured*: `torch.export` exports it, in its default mode (in strict mode for {strict})",
        "- *converted*: the program converts to an IR, which round-trips through a file",
        "- *verified*: the graph returns the same results as the model, and changes the same state",
        "",
        f"Measured on CPU with {packages}.",
        "`python -m tests.coverage --write` writes this page, if every model reaches the stage given here; the",
        "row of operators is from [their page](operators.md). `make test` runs a part of it, `make test-all` all of",
        "it. The models are in `tests/forms` and `tests/architectures`.",
        "",
    ]


def _counts() -> list[str]:
    rows = [
        _operator_counts(),
        *map(_architecture_counts, TABLES),
        *map(_language_model_counts, LANGUAGE_MODELS),
        *map(_family_counts, FAMILIES),
    ]
    return [
        "| set | models | captured | converted | verified |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
        "",
    ]


def _operator_counts() -> list[object]:
    """Read the counts from the last row of docs/operators.md: calls that eager accepts, by outcome."""
    lines = (DOCS / "operators.md").read_text(encoding="utf-8").splitlines()
    _, refused, carried, lost = (
        int(cell) for cell in next(line for line in lines if line.startswith("| all |")).split("|")[2:-1]
    )
    captured = carried + lost
    return ["calls of operators", refused + captured, captured, carried, carried]


def _architecture_counts(kind: str) -> list[object]:
    names = [each.name for each in architectures() if each.kind == kind]
    captured = len([name for name in names if name not in NOT_CAPTURED])
    return [f"transformers: {kind.replace('_', '-')}", len(names), captured, captured, captured]


def _language_model_counts(kind: str) -> list[object]:
    names = [each.name for each in language_models() if each.kind == kind]
    carried = len([name for name in names if name not in NOT_GENERATING])
    return [f"prefill and decode: {kind.replace('_', '-')}", len(names), carried, carried, carried]


def _family_counts(family: Family) -> list[object]:
    reached = [STAGES.index(form.expected.stage) for form in family.forms.values()]
    return [family.name, len(reached), *(sum(stage >= least for stage in reached) for least in (2, 3, 4))]


def _forms_not_carried() -> list[str]:
    rows = [form for form in forms() if form.expected.stage != VERIFIED]
    return [
        "## What is not verified",
        "",
        "Operators are on [their page](operators.md); architectures are at the end.",
        f"*{UNBUILT}*: the library has no CPU kernel for it, so there is no model to capture.",
        "",
        "| model | set | stage | reason |",
        "|---|---|---|---|",
        *(f"| `{form.name}` | {form.family} | {form.expected.stage} | {form.expected.reason} |" for form in rows),
        "",
    ]


def _higher_order() -> list[str]:
    verdicts = {name: f"verified: `{form}`" for name, form in hops.CAPTURED.items()}
    verdicts |= {name: f"verified, traced through: `{form}`" for name, form in hops.TRACED_THROUGH.items()}
    verdicts |= hops.NOT_CAPTURED
    return [
        "## Higher-order operators",
        "",
        "All that torch registers, each with a model that uses it, or the reason why no graph contains it.",
        "",
        "| operator | verdict |",
        "|---|---|",
        *(f"| `{name}` | {verdicts[name]} |" for name in sorted(verdicts)),
        "",
    ]


def _architectures() -> list[str]:
    return [
        "## Architectures of transformers that are captured only with values",
        "",
        "All others are captured on meta. In these, Python reads values of tensors: they are [recorded](record.md) on",
        "real tensors, with guards for those values.",
        "",
        "| architecture | reason |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in sorted(NEEDS_VALUES.items())),
        "",
        "Not captured at all:",
        "",
        "| architecture | reason |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in sorted(NOT_CAPTURED.items())),
        "",
        "## Language models without prefill and decode graphs",
        "",
        "With the two graphs, the others generate the tokens of `model.generate`; see",
        f"[language models](language-models.md). Only for a fixed prompt length: {_listed(FIXED_PROMPT)}.",
        "",
        "| architecture | reason |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in sorted(NOT_GENERATING.items())),
        "",
    ]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def wrong_language_models() -> Iterable[str]:
    """Yield language models whose tokens differ from the model's, or that are listed although they agree."""
    for each in language_models():
        reason = carry_language_model(each)
        if bool(reason) != (each.name in NOT_GENERATING):
            yield f"prefill and decode: {each.name}: {reason or 'is supported'}"


def wrong_forms() -> Iterable[str]:
    """Yield forms that do not reach the stage in their table."""
    for form in forms():
        outcome = carry(form)
        if outcome.stage != form.expected.stage:
            yield f"{form.family}: {form.name} is {outcome.stage}, not {form.expected.stage}: {outcome.reason}"


def wrong_architectures() -> Iterable[str]:
    """Yield architectures whose outcome differs from the lists."""
    with tempfile.TemporaryDirectory() as place:
        outcomes = {each.name: extract(each, Path(place)) for each in architectures()}
        captured = [name for name, outcome in outcomes.items() if outcome != ARCHITECTURE_REFUSED]
        verdicts = verify_in_fresh_process(captured, Path(place))
    for name, outcome in outcomes.items():
        if (name in captured) == (name in NOT_CAPTURED):
            yield f"transformers: {name} is {outcome}"
        elif verdicts.get(name):
            yield f"transformers: {name}: {verdicts[name]}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/coverage.md")
    options = parser.parse_args()
    wrong = [*wrong_forms(), *wrong_architectures(), *wrong_language_models()]
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    if options.write:
        PAGE.write_text(page(), encoding="utf-8")
    print(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
