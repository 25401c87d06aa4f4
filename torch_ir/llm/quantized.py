"""Reject transformers configurations that request quantised weights, which building a model ignores."""

from __future__ import annotations

from typing import Any

from torch_ir.errors import ExportError


def refuse_quantized(config: Any) -> None:
    """Raise ExportError for a configuration with a `quantization_config`."""
    for each in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        requested = getattr(each, "quantization_config", None)
        if requested is not None:
            settings = requested if isinstance(requested, dict) else requested.to_dict()
            method = settings.get("quant_method", "unknown")
            raise ExportError(
                f"the configuration of {config.model_type!r} has a quantization_config (quant_method "
                f"{str(getattr(method, 'value', method))!r}), which is not supported when a model is built from a "
                "configuration; set it to None to capture the model without quantisation"
            )
