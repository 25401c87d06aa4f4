"""Models of packages of PyPI: how to list them, and how to build one with its inputs in a modest real size.

A class is called with those of its package's options that its signature names; one that needs others fails.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Package(NamedTuple):
    """The names of a package's models, and a function that builds one."""

    names: Callable[[], Iterable[str]]
    build: Callable[[str], Built]


def _fitting(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a signature names."""
    return {name: value for name, value in options.items() if name in inspect.signature(function).parameters}


def _classes(module: str) -> dict[str, Any]:
    """Return the public module classes of a Python module, each once."""
    found = vars(importlib.import_module(module))
    classes = {each: name for name, each in found.items() if inspect.isclass(each) and issubclass(each, nn.Module)}
    return {name: each for each, name in classes.items() if not name.startswith("_")}


def _modules(package: str) -> list[str]:
    return [each.name for each in pkgutil.iter_modules(importlib.import_module(package).__path__)]


def _image(size: int = 224, batch: int = 1) -> Tensor:
    return torch.rand(batch, 3, size, size)


def _tokens(length: int = 128, vocabulary: int = 1000) -> Tensor:
    return torch.randint(vocabulary, (1, length))


def _of_classes(module: str, options: Callable[[], dict[str, Any]], *inputs: Callable[[], Tensor]) -> Package:
    """Return a package whose models take the same inputs: all classes that take one of the options."""

    def build(name: str) -> Built:
        kind = _classes(module)[name]
        return kind(**_fitting(kind, options())), tuple(each() for each in inputs), {}

    return Package(lambda: [name for name, kind in _classes(module).items() if _fitting(kind, options())], build)


def _torchvision() -> list[str]:
    from torchvision.models import list_models

    return [name for name in list_models() if not name.startswith("quantized")]


def _torchvision_model(name: str) -> Built:
    import torchvision.models as models

    function = models.get_model_builder(name)
    model = models.get_model(name, **_fitting(function, {"weights": None, "weights_backbone": None}))
    if function.__module__.startswith("torchvision.models.video"):
        return model, (torch.rand(1, 3, 16, 224, 224),), {}
    if function.__module__.startswith("torchvision.models.detection"):
        return model, ([_image(320)[0]],), {}
    return model, (_image(256), _image(256)) if "raft" in name else (_image(),), {}


def _ultralytics() -> list[str]:
    import ultralytics

    return [file.name for file in (Path(ultralytics.__file__).parent / "cfg" / "models").rglob("yolo*.yaml")]


def _ultralytics_model(name: str) -> Built:
    from ultralytics import YOLO

    return YOLO(name).model, (_image(320),), {}


def _segmentation() -> list[str]:
    import segmentation_models_pytorch as smp

    encoders = ("resnet34", "efficientnet-b0", "mobilenet_v2", "timm-regnetx_002", "mit_b0", "densenet121", "vgg13")
    return [f"{kind}/{encoder}" for kind in smp.MODEL_ARCHITECTURES_MAPPING for encoder in encoders]


def _segmentation_model(name: str) -> Built:
    import segmentation_models_pytorch as smp

    kind, encoder = name.split("/")
    return smp.create_model(kind, encoder, encoder_weights=None, classes=21), (_image(256),), {}


def _graph_model(name: str) -> Built:
    """Build a model of graphs with 200 nodes, or of molecules of 20 atoms."""
    options: dict[str, Any] = {
        "in_channels": 64, "hidden_channels": 64, "out_channels": 16, "num_layers": 3, "depth": 3, "num_nodes": 200,
        "aggregators": ["mean", "max", "std"], "scalers": ["identity", "attenuation"], "deg": torch.arange(10),
        "edge_dim": 8, "num_timesteps": 2, "channels": [64, 64, 64], "act": "relu", "embedding_dim": 64,
        "num_blocks": 2, "node_feature_size": 64, "edge_feature_size": 8, "num_bilinear": 8, "num_radial": 6,
        "int_emb_size": 32, "basis_emb_size": 8, "out_emb_channels": 64, "dim_in": 64, "num_entities": 200,
    }  # fmt: skip
    inputs: dict[str, Any] = {
        "x": torch.randn(200, 64), "edge_index": torch.randint(200, (2, 1000)), "edge_attr": torch.randn(1000, 8),
        "batch": torch.arange(200) // 50, "z": torch.randint(1, 10, (20,)), "pos": torch.randn(20, 3) * 2,
    }  # fmt: skip
    kind = _classes("torch_geometric.nn.models")[name]
    model = kind(**_fitting(kind, options))
    if "z" in inspect.signature(model.forward).parameters:
        inputs["batch"] = torch.zeros(20, dtype=torch.long)
    return model, (), _fitting(model.forward, inputs)


def _medical() -> dict[str, Any]:
    return {
        "spatial_dims": 2, "in_channels": 1, "out_channels": 2, "num_classes": 2, "in_shape": (1, 96, 96),
        "img_size": (96, 96), "patch_size": (16, 16), "channels": (16, 32, 64, 128), "strides": (2, 2, 2),
        "features": (16, 16, 32, 64, 128, 16), "feature_size": 24, "kernel_size": (3, 3, 3), "classes": 2,
        "upsample_kernel_size": (2, 2), "backbone": "efficientnet-b0", "pretrained": False, "out_shape": (2,),
        "block": "basic", "layers": [2, 2, 2, 2], "block_inplanes": [64, 128, 256, 512], "input_image_size": (96, 96),
        "num_channel_initial": 16, "extract_levels": (0, 1, 2), "depth": 3, "model_name": "efficientnet-b0",
        "n_input_channels": 1, "image_size": (96, 96), "latent_shape": (1, 12, 12), "start_shape": (1, 12, 12),
    }  # fmt: skip


def _x_transformer(options: str) -> Built:
    """Build an encoder or decoder of tokens whose layers have an option."""
    from x_transformers import Decoder, Encoder, TransformerWrapper

    kind, _, option = options.partition("/")
    value = {"attn_num_mem_kv": 16, "shift_tokens": 1, "attn_kv_heads": 2, "attn_sparse_topk": 8}.get(option, True)
    layers: Any = Decoder if kind == "decoder" else Encoder
    made = layers(dim=256, depth=6, heads=8, **({option: value} if option else {}))
    return TransformerWrapper(num_tokens=1000, max_seq_len=256, attn_layers=made), (_tokens(),), {}


_ATTENTION = (
    "", "rotary_pos_emb", "alibi_pos_bias", "rel_pos_bias", "attn_flash", "use_rmsnorm", "ff_glu", "attn_num_mem_kv",
    "attn_sparse_topk", "attn_talking_heads", "attn_qk_norm", "attn_kv_heads", "residual_attn", "macaron",
    "gate_residual", "shift_tokens", "sandwich_norm", "rotary_xpos", "dynamic_pos_bias", "attn_on_attn",
)  # fmt: skip


def _vit_model(name: str) -> Built:
    """Build the last class of a module that has classes of images."""
    options = {
        "image_size": 224, "patch_size": 16, "num_classes": 1000, "dim": 256, "depth": 4, "heads": 4, "mlp_dim": 512,
        "dim_head": 64, "num_layers": 4, "cls_depth": 2, "mlp_mult": 2, "mlp_ratio": 2, "stages": 2,
    }  # fmt: skip
    kinds = [each for each in _classes(f"vit_pytorch.{name}").values() if each.__module__ == f"vit_pytorch.{name}"]
    kind = [each for each in kinds if "num_classes" in inspect.signature(each).parameters][-1]
    return kind(**_fitting(kind, options)), (_image(),), {}


def _clicks() -> dict[str, Any]:
    from deepctr_torch.inputs import DenseFeat, SparseFeat

    columns = [*(SparseFeat(f"C{i}", 1000, 8) for i in range(26)), *(DenseFeat(f"I{i}", 1) for i in range(13))]
    names = ("linear_feature_columns", "dnn_feature_columns", "region_feature_columns")
    return dict.fromkeys(names, columns) | {"task_types": ("binary", "binary"), "task_names": ("ctr", "ctcvr")}


def _click_rows() -> Tensor:
    return torch.cat([torch.randint(1000, (256, 26)).float(), torch.rand(256, 13)], 1)


def _brainwaves() -> dict[str, Any]:
    channels = [{"ch_name": name} for name in ("C3", "C4", "Cz", "Fz", "Pz", "O1", "O2", "Oz")]
    return {"n_chans": 8, "n_outputs": 4, "n_times": 1000, "sfreq": 250, "chs_info": channels}


def _forecaster(name: str) -> Built:
    kind = _classes("neuralforecast.models")[name]
    model = kind(**_fitting(kind, {"h": 12, "input_size": 48, "n_series": 4, "max_steps": 1}))
    series = torch.randn(4, 48, 4 if model.MULTIVARIATE else 1)
    batch = {"insample_y": series, "insample_mask": torch.ones_like(series)}
    return model, (batch | dict.fromkeys(("futr_exog", "hist_exog", "stat_exog")),), {}


def _clips() -> list[str]:
    import open_clip

    large = ("-L-", "-H-", "-g-", "bigG", "large", "-e-", "-E-", "SO400M", "gopt", "x16", "x64", "min-L", "min-XL")
    return [name for name in open_clip.list_models() if not any(part in name for part in large)]


def _clip(name: str) -> Built:
    import open_clip

    model = open_clip.create_model(name, pretrained_hf=False)
    config = open_clip.get_model_config(name)
    length = config["text_cfg"].get("context_length", 77)
    return model, (_image(config["vision_cfg"]["image_size"]), _tokens(length, 10000)), {}


def _language_model(name: str) -> Built:
    from litgpt import GPT, Config

    width = {"n_embd": 256, "intermediate_size": 512, "head_size": 32, "n_head": 8, "moe_intermediate_size": 128}
    given = Config.from_name(name)
    groups = {"n_query_groups": 8 if given.n_query_groups == given.n_head else min(2, given.n_query_groups)}
    return GPT(Config.from_name(name, n_layer=6, padded_vocab_size=1000, **width, **groups)), (_tokens(),), {}


def _policies() -> list[str]:
    return [f"{kind}/{each}" for kind in ("ppo", "dqn", "sac", "td3") for each in ("MlpPolicy", "CnnPolicy")]


def _policy(name: str) -> Built:
    from gymnasium.spaces import Box, Discrete

    kind, policy = name.split("/")
    pixels = Box(0, 255, (4, 84, 84), "uint8")
    seen: Any = pixels if policy == "CnnPolicy" else Box(-1.0, 1.0, (24,))
    actions: Any = Discrete(6) if kind == "dqn" else Box(-1.0, 1.0, (6,))
    made = getattr(importlib.import_module(f"stable_baselines3.{kind}"), policy)(seen, actions, lambda _: 1e-3)
    inputs = torch.randint(256, (8, 4, 84, 84)) if policy == "CnnPolicy" else torch.rand(8, 24)
    return made, (inputs,), {"deterministic": True}


_SERIES = {"c_in": 6, "c_out": 4, "seq_len": 96}
_SOUND = {"n_src": 2, "architecture": "DCUNet-10", "sample_rate": 16000}
PACKAGES: dict[str, Package] = {
    "torchvision": Package(_torchvision, _torchvision_model),
    "ultralytics": Package(_ultralytics, _ultralytics_model),
    "segmentation_models_pytorch": Package(_segmentation, _segmentation_model),
    "torch_geometric": Package(lambda: _classes("torch_geometric.nn.models"), _graph_model),
    "monai": _of_classes("monai.networks.nets", _medical, lambda: torch.rand(1, 1, 96, 96)),
    "x_transformers": Package(lambda: [f"{k}/{o}" for k in ("decoder", "encoder") for o in _ATTENTION], _x_transformer),
    "vit_pytorch": Package(lambda: _modules("vit_pytorch"), _vit_model),
    "deepctr_torch": _of_classes("deepctr_torch.models", _clicks, _click_rows),
    "asteroid": _of_classes("asteroid.models", lambda: _SOUND, partial(torch.randn, 1, 16000)),
    "braindecode": _of_classes("braindecode.models", _brainwaves, partial(torch.randn, 4, 8, 1000)),
    "tsai": _of_classes("tsai.models.all", lambda: _SERIES, partial(torch.randn, 8, 6, 96)),
    "neuralforecast": Package(lambda: _classes("neuralforecast.models"), _forecaster),
    "open_clip": Package(_clips, _clip),
    "litgpt": Package(lambda: importlib.import_module("litgpt.config").name_to_config, _language_model),
    "stable_baselines3": Package(_policies, _policy),
}
