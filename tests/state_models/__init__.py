"""Generated models with state, captured in every way and compared with eager PyTorch in a separate process."""

from tests.state_models import (  # noqa: F401  # they register
    aliases,
    ambient,
    assigned,
    code,
    memos,
    objects,
    outside,
    parameters,
    python_state,
)
