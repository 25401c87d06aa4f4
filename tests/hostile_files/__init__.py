"""Hostile files, and the expected result of each."""

from tests.hostile_files import (
    bombs,
    closed_lists,
    controls,
    gguf,
    labels,
    malformed,
    operators,
    other_files,
    paths,
    planning_files,
    protobuf,
    references,
    settings_files,
    structure,
    weights,
)

FAMILIES = [
    malformed.FAMILY, structure.FAMILY, closed_lists.FAMILY, references.FAMILY, bombs.FAMILY, operators.FAMILY,
    paths.FAMILY, weights.FAMILY, gguf.FAMILY, protobuf.FAMILY, other_files.FAMILY, settings_files.FAMILY,
    planning_files.FAMILY, labels.FAMILY, controls.FAMILY,
]  # fmt: skip
CASES = [case for family in FAMILIES for case in family]
