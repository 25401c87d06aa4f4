"""Devices by the text that a user writes: figures, a published name, a device file, or this machine.

find_device("peak=312TFLOPs,bw=2.0TB/s")
find_device("H100")
find_device("h200.json"), find_device("this")      # written by torch-ir calibrate
"""

from __future__ import annotations

from torch_ir.analysis.cost_model.roofline import Roofline
from torch_ir.analysis.devices.calibration import KINDS, Calibration
from torch_ir.analysis.devices.device_file import device_path, load_device
from torch_ir.analysis.devices.published_devices import PUBLISHED, published
from torch_ir.errors import DeviceError, did_you_mean

THIS = "this"
_OWN = {f"{THIS}:{kind}": kind for kind in KINDS}


def find_device(text: str) -> Roofline:
    """Return the device of a text; a DeviceError says what is wrong with it."""
    if text == THIS or text in _OWN:
        return _this(text)
    if "=" in text:
        return Roofline.parse(text)
    if text.lower().endswith(".json"):
        return load_device(text)
    known = published(text)
    if known is not None:
        return known.roofline
    hint = did_you_mean(text, [*PUBLISHED, THIS])
    raise DeviceError(
        f"unknown device {text!r:.60}{hint}; write figures such as peak=312TFLOPs,bw=2.0TB/s, a device file, "
        f"`{THIS}`, or one of {', '.join(PUBLISHED)}"
    )


def _this(text: str) -> Calibration:
    """Return the calibration of this machine; if it has several, that of the CPU."""
    kinds = KINDS if text == THIS else (_OWN[text],)
    path = next((path for path in map(device_path, kinds) if path.is_file()), None)
    if path is None:
        wanted = "" if text == THIS else f" --device {_OWN[text]}"
        raise DeviceError(
            f"this machine is not calibrated yet; run torch-ir calibrate{wanted}, which takes a few minutes"
        )
    return load_device(path)
