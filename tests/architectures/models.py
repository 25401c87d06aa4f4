"""The catalogue as a list for `torch-ir sweep`: each architecture by its configuration, with inputs of the same shapes.

python -m tests.architectures.models > models.txt
"""

import json
from collections.abc import Iterator

import torch

from tests.architectures import TABLES, shared_sizes
from tests.architectures.inputs import make_inputs


def lines() -> Iterator[str]:
    """A line of JSON for each architecture."""
    import transformers

    for rows in TABLES.values():
        for _, model, overrides, inputs in rows:
            config = getattr(transformers, model).config_class
            settings = {"class": model, **shared_sizes(config), **overrides}
            query = "&".join(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in settings.items())
            specs = [_spec(name, tensor) for name, tensor in make_inputs(inputs).items()]
            yield json.dumps({"model": f"hf:{config.model_type}?{query}", "input": specs})


def _spec(name: str, tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    below = "" if tensor.is_floating_point() else f"<{int(tensor.max()) + 1}"
    return f"{name}={dtype}[{','.join(map(str, tensor.shape))}]{below}"


if __name__ == "__main__":
    print(*lines(), sep="\n")
