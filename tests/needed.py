"""Skip tests of back ends that cannot run here, with the back end's own reason."""

import pytest

from torch_ir.backends.table import find_backend
from torch_ir.errors import TorchIRError


def need_backend(name: str) -> None:
    """Skip the test, or the module that is being imported, where a back end is not installed or refuses to run."""
    try:
        find_backend(name)
    except TorchIRError as error:
        pytest.skip(str(error), allow_module_level=True)
