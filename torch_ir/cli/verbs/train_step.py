"""`torch-ir train-step`: capture forward, loss, backward and optimiser of a model as one graph file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.graph_argument import MODELS
from torch_ir.cli.verb import add_blocks, add_inputs, add_json, argument, save_graph, show
from torch_ir.cli.verbs.info import counts_text, summarise
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.cli.arguments.input_specs import InputSpec
    from torch_ir.ir import IR

SUMMARY = "capture a training step: forward, loss, backward, update"
EXAMPLES = """
net.py:Net -i 8x32 --target 8x10 --loss mse_loss --optimizer adamw --lr 1e-4 -o step.json
net.py:Net -i 8x32 --target "i64[8]<10" --loss cross_entropy --optimizer sgd --lr 0.1 --momentum 0.9 -o step.json
"hf:llama?num_hidden_layers=2" -i "input_ids=i64[1,128]" -i "labels=i64[1,128]" --optimizer adamw -o step.json
net.py:Net -i 8x32 --target 8x10 --loss mse_loss -o gradients.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "model MODEL", f"{MODELS}; in training mode")
    add_inputs(parser, "a value for a named size, such as batch=8; repeatable")
    argument(parser, "--target SPEC...", "an argument of the loss after the outputs")
    argument(
        parser,
        "--loss NAME",
        "a function of torch.nn.functional, such as cross_entropy, or `seed`: the targets are gradients of the "
        "outputs (default: the model's own loss)",
    )
    argument(parser, "--optimizer NAME", "sgd, adam, adamw, adafactor or muon (default: none; gradients only)")
    argument(parser, "--lr X", "learning rate (default: that of torch.optim)", type=float)
    argument(parser, "--weight-decay X", "weight decay (default: that of torch.optim)", type=float)
    argument(parser, "--momentum X", "momentum of sgd and muon", type=float)
    argument(parser, "--nesterov", "Nesterov momentum of sgd", default=None)
    argument(parser, "--clip-norm X", "limit the norm of all gradients", type=float)
    argument(parser, "--loss-scale X", "multiply the loss before backward", type=float)
    argument(parser, "--micro-batches N", "split the batch; sum the gradients", type=int, default=1)
    add_blocks(parser)
    argument(parser, "--name NAME", "the name of the model in the file (default: its class)")
    argument(parser, "-o --output FILE", "the IR file to write", required=True)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    given = [name for name in ("lr", "weight_decay", "momentum", "nesterov") if getattr(arguments, name) is not None]
    if given and not arguments.optimizer:
        raise CommandError(f"--{given[0].replace('_', '-')} needs --optimizer")
    from torch_ir.cli.arguments.captured_model import capture
    from torch_ir.cli.arguments.input_specs import parse_inputs

    targets = parse_inputs(arguments.target)

    def extract(model: Any, args: Any, kwargs: Any, value_of: Callable[[InputSpec], Any]) -> IR:
        from torch_ir.training import extract_training
        from torch_ir.training.named_optimizers import named_optimizer

        model.train()
        options = {name: getattr(arguments, name) for name in given}
        return extract_training(
            model,
            args,
            kwargs=kwargs,
            targets=tuple(value_of(spec) for spec in targets),
            loss=_loss(arguments.loss),
            optimizer=named_optimizer(arguments.optimizer, model, **options) if arguments.optimizer else None,
            clip_norm=arguments.clip_norm,
            loss_scale=arguments.loss_scale,
            micro_batches=arguments.micro_batches,
            strict=False,
            blocks=arguments.blocks,
            model_name=arguments.name,
        )

    captured = capture(arguments.model, arguments, extractor=extract, further=targets)
    save_graph(captured.ir, arguments.output)
    entries = {name: len(body.nodes) for name, body in captured.ir.functions.items() if name in ("forward", "backward")}
    facts = {**summarise(captured.ir), "seconds": round(captured.seconds, 3), "file": arguments.output, **entries}
    sentence = f"{facts['model_name']}: {counts_text(facts)} in {facts['seconds']:.2f} s -> {facts['file']}"
    show(arguments, lambda: facts, lambda: sentence)
    return 0


def _loss(name: str | None) -> Any:
    """Return the loss of this name."""
    if name in (None, "seed"):
        return name
    from torch.nn import functional

    from torch_ir.errors import did_you_mean

    known = [word for word in dir(functional) if not word.startswith("_") and callable(getattr(functional, word))]
    if name not in known:
        raise CommandError(f"torch.nn.functional has no {name!r}{did_you_mean(str(name), known)}")
    return getattr(functional, name)
