"""Small models of every form that a program can have: control flow, higher-order operators, effects, quantisation."""

from tests.forms import (
    caches,
    control_flow,
    effects,
    export_db,
    higher_order,
    hop_db,
    kinds,
    quantised,
    transforms,
)
from tests.forms.form import Form

FAMILIES = (
    export_db.family,
    control_flow.family,
    higher_order.family,
    hop_db.family,
    transforms.family,
    kinds.family,
    effects.family,
    caches.family,
    quantised.family,
)


def forms() -> list[Form]:
    """Every form of every family."""
    return [form for family in FAMILIES for form in family.forms.values()]
