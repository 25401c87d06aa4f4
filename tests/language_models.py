"""Every language model of the architectures as prefill and decode graphs, compared with `model.generate`.

python -m tests.language_models [--both] [NAME ...]     all of them, or those named; prints a line each

With --both, the file of fast capture is compared with that of torch.export instead.
"""

import logging
import sys
import warnings
from functools import partial
from unittest.mock import patch

import torch

from tests.architectures import Architecture, architectures
from torch_ir import IR, TorchIRError, meta_init
from torch_ir.llm import extract_llm, extraction, verify_llm
from torch_ir.llm.generation import example_prompt

KINDS = ("causal", "moe", "encoder_decoder", "state_space")
TOKENS = 8
PROMPT = 8
LENGTHS = (3, PROMPT, 13)  # of prompts; the caches of the 8 tokens after them have up to 20 places

_OWN_STATE = "has its own kind of state"
_ROUTERS = "decoding needs router outputs of the encoder, which are not in the cache"
# Not carried as prefill and decode; a reason for each.
NOT_CARRIED: dict[str, str] = {
    "openai_gpt": "has no cache",
    "mpt": "slices its bias to the current length, with a special case for the whole bias",
    "dbrx": "torch.export refuses it: loops over the experts in use",
    "minimax": "accepts only its own cache class",
    "switch_transformers": _ROUTERS,
    "nllb_moe": _ROUTERS,
    "longt5": "its encoder needs a mask when it is called alone",
    "pegasus_x": "pads the source to whole blocks, with a special case for no padding",
    "bigbird_pegasus": "uses different attention for long and short sources",
    "led": "torch.export refuses it: branches on whether any token has global attention",
    "prophetnet": "fixes the length of the past",
    "rwkv": _OWN_STATE,
    "recurrent_gemma": _OWN_STATE,
    "xlstm": _OWN_STATE,
}
# Captured for a prompt of one length: they loop over its tokens, or work on it in chunks.
FIXED_PROMPT = frozenset(
    (
        "mamba",
        "mamba2",
        "falcon_mamba",
        "falcon_h1",
        "jamba",
        "bamba",
        "granitemoehybrid",
        "nemotron_h",
        "zamba",
        "zamba2",
    )
)

# Fast capture lacks constraints of torch.export that exclude no size; see `NOT_FAST_OPEN` in `tests/architectures`.
OTHER_CONSTRAINTS = frozenset(("qwen3_next",))

# Forms that extract_llm refuses, because their tokens would differ from the model's; a reason for each.
_BY_LENGTH = "takes the length of the cache for the number of tokens so far"
_NO_MASK = "decodes without a mask when it generates by itself"
REFUSED_FORMS: dict[str, tuple[str, frozenset[str]]] = {
    "gpt_neo": (_BY_LENGTH, frozenset(("fixed", "fixed, padded"))),
    "imagegpt": (_BY_LENGTH, frozenset(("fixed",))),
    "fsmt": (_BY_LENGTH, frozenset(("fixed", "fixed, padded"))),
    "mamba": (_NO_MASK, frozenset(("grows, padded", "fixed, padded"))),
    "falcon_mamba": (_NO_MASK, frozenset(("grows, padded", "fixed, padded"))),
}


def language_models() -> list[Architecture]:
    return [each for each in architectures() if each.kind in KINDS]


def carry(architecture: Architecture) -> str:
    """Extract both graphs from a model without weights, load the file, and generate; empty if all is equal."""
    model = architecture.build()
    is_fixed = architecture.name in FIXED_PROMPT
    try:
        with meta_init():
            bare = type(model)(model.config)
        ir = IR.from_json(extract_llm(bare, prompt=PROMPT if is_fixed else None).to_json())
        seq = ir.symbols.get("seq")
        admitted = [length for length in LENGTHS if seq is None or seq.admits(length)]  # qwen3_next takes no 3
        for length in (PROMPT,) if is_fixed else admitted:
            torch.manual_seed(0)
            is_valid, told = verify_llm(ir, model, TOKENS, **example_prompt(ir, length))
            if not is_valid:
                return f"a prompt of {length} tokens: {told}"
    except TorchIRError as error:
        return str(error)
    return ""


def compare(architecture: Architecture) -> str:
    """Extract both graphs by fast capture and by torch.export; return the first difference, empty if there is none."""
    model = architecture.build()
    with meta_init():
        bare = type(model)(model.config)
    prompt = PROMPT if architecture.name in FIXED_PROMPT else None
    exporting = partial(extraction.extract_ir, capture="export")
    files = []
    for extract_ir in (extraction.extract_ir, exporting):
        try:
            with patch.object(extraction, "extract_ir", extract_ir):
                files.append(extract_llm(bare, prompt=prompt).to_json())
        except TorchIRError as error:
            files.append(str(error))
    fast, exact = files
    if fast == exact:
        return ""
    lines = zip(fast.splitlines(), exact.splitlines(), strict=False)
    return next((f"{ours:.120} / {theirs:.120}" for ours, theirs in lines if ours != theirs), "one has more lines")


def main(names: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if "--both" in names:
        return _compare_all([name for name in names if name != "--both"])
    chosen = [each for each in language_models() if not names or each.name in names]
    wrong = 0
    for each in chosen:
        reason = carry(each)
        wrong += bool(reason) != (each.name in NOT_CARRIED)
        print(f"{each.name}: {reason or 'generates what the model generates'}", flush=True)
    print(f"{len(chosen)} language models, {wrong} not as expected")
    return 1 if wrong else 0


def _compare_all(names: list[str]) -> int:
    chosen = [each for each in language_models() if not names or each.name in names]
    outcomes = {}
    for each in chosen:
        outcomes[each.name] = compare(each)
        print(f"{each.name}: {outcomes[each.name] or 'the same file, or the same refusal'}", flush=True)
    different = {name for name, outcome in outcomes.items() if outcome}
    print(f"{len(chosen)} language models, {len(different)} differ")
    return 0 if different <= OTHER_CONSTRAINTS else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
