"""Hostile files, and the expected result of each."""

from tests.hostile_files import (
    bombs,
    closed_lists,
    controls,
    labels,
    malformed,
    operators,
    other_files,
    paths,
    protobuf,
    references,
    structure,
    weights,
)

FAMILIES = [
    malformed.FAMILY, structure.FAMILY, closed_lists.FAMILY, references.FAMILY, bombs.FAMILY, operators.FAMILY,
    paths.FAMILY, weights.FAMILY, protobuf.FAMILY, other_files.FAMILY, labels.FAMILY, controls.FAMILY,
]  # fmt: skip
CASES = [case for family in FAMILIES for case in family]
