"""Import OpenVINO, with its telemetry replaced by OpenVINO's own stub, so that nothing is sent."""

from __future__ import annotations

import importlib
import sys
from typing import Any

_TELEMETRY = "openvino_telemetry"


def import_openvino(name: str = "openvino") -> Any:
    """Import OpenVINO or a module of it; telemetry already imported by the user's program is left alone."""
    if _TELEMETRY in sys.modules:
        return importlib.import_module(name)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # makes `import` of it raise ImportError
    try:
        return importlib.import_module(name)
    finally:
        sys.modules.pop(_TELEMETRY, None)
