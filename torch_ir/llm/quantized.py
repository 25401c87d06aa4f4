"""Configurations of transformers that ask for quantised weights, which a model built from them does not have."""

from __future__ import annotations

from typing import Any

from torch_ir.errors import ExportError


def refuse_quantized(config: Any) -> None:
    """Refuse a configuration with a `quantization_config`, which building a model from it ignores."""
    for each in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        asked = getattr(each, "quantization_config", None)
        if asked is not None:
            settings = asked if isinstance(asked, dict) else asked.to_dict()
            method = settings.get("quant_method", "unknown")
            raise ExportError(
                f"the configuration of {config.model_type!r} has a quantization_config (quant_method "
                f"{str(getattr(method, 'value', method))!r}), which is not supported when a model is built from a "
                "configuration; set it to None to capture the model without quantisation"
            )
