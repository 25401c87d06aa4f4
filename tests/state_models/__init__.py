"""Models with state, generated, captured on every road and compared with eager PyTorch in a process of its own."""

from tests.state_models import aliases, ambient, assigned, memos, parameters, python_state  # noqa: F401  # they register
