"""Generated models with state, captured in every way and compared with eager PyTorch in a separate process."""

from tests.state_models import aliases, ambient, assigned, memos, parameters, python_state  # noqa: F401  # they register
