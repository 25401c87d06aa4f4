"""The targets by name; each has `seeds`, valid inputs, and `check`, which raises only for bugs."""

from pathlib import Path
from types import ModuleType

from fuzz import expressions, read_json, read_lowered, read_protobuf, read_text, read_weights, two_roads
from fuzz.documents import DOCUMENTS
from fuzz.target import Target
from fuzz.verbs import VERBS

TARGETS: dict[str, ModuleType | Target] = {
    "read_json": read_json,
    "two_roads": two_roads,
    "read_text": read_text,
    "read_protobuf": read_protobuf,
    "read_lowered": read_lowered,
    "read_weights": read_weights,
    "expressions": expressions,
    **DOCUMENTS,
    **VERBS,
}
FOLDER = Path("reports") / "fuzz"  # of what is found
CURRENT = "current"  # file of a process: the input that is being tried
COUNT = "count"  # file of a process: how many inputs it has tried, in eight bytes
REGRESSIONS = Path(__file__).parents[1] / "tests" / "data" / "regressions" / "fuzz"  # inputs by target that failed once
