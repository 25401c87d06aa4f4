"""Random valid graphs that run; the same seed produces the same graph.

Every node is computed while the graph is drawn, so that what torch refuses never gets in. What the graphs are made of
is in `random_blocks.py`: little pieces that look like what passes look for, or almost.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch

from tests.random_blocks import BLOCKS, STEADY
from tests.random_draft import Draft, RefusedError, random_values
from torch_ir.analysis.shapes.open_sizes import points_of
from torch_ir.errors import GraphError, TorchIRError
from torch_ir.ir import IR, OpNode, TensorMeta, evaluate
from torch_ir.ir.regroup.functions import drop_unused, given_by, inline, outline
from torch_ir.ir.sizes.specialize import squeezed_sizes
from torch_ir.ops.effects import writes_in_place
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.run.executor import IRExecutor
from torch_ir.run.weight_files import random_weights

Values = list[torch.Tensor]
SPECIAL = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0, -1.0)
_TRIES = 20


def random_graph(seed: int, *, steady: bool = False) -> IR:
    """Return a graph of 3 to 40 nodes; a steady one is insensitive to small changes of its inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for attempt in range(_TRIES):
            ir = _drawn(random.Random(f"{seed}/{attempt}/{steady}"), steady)
            if ir is not None and runs(ir):
                return ir
    raise AssertionError(f"no graph for seed {seed}")


def _drawn(draw: random.Random, steady: bool) -> IR | None:
    draft = Draft(draw, steady)
    blocks = STEADY if steady else BLOCKS
    names, weights = list(blocks), [weight for _, weight in blocks.values()]
    wanted = draw.randint(3, 34)
    favourites = draw.choices(names, weights, k=2)  # so that pieces of one kind meet
    for _ in range(60):
        if len(draft.nodes) >= wanted:
            break
        name = draw.choice(favourites) if draw.random() < 0.3 else draw.choices(names, weights)[0]
        try:
            blocks[name][0](draft)
        except RefusedError:
            continue
    if not any(node.outputs for node in draft.nodes):
        return None
    ir = draft.graph()
    if draw.random() < 0.2:
        _outline_some(ir, draw)
    try:
        return ir.check()
    except GraphError:
        return None


def _outline_some(ir: IR, draw: random.Random) -> None:
    """Outline some consecutive nodes into a function, once or twice."""
    for number in range(draw.randint(1, 2)):
        start = draw.randrange(len(ir.nodes))
        nodes = [node for node in ir.nodes[start : start + draw.randint(2, 8)] if node.outputs]
        if not given_by(nodes):
            continue
        try:
            outline(ir, nodes, f"part_{number}")
        except TorchIRError:
            continue


def runs(ir: IR) -> bool:
    """Whether a graph runs at every allowed size, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            executor = IRExecutor(ir, random_weights(ir))
            for number, sizes in enumerate(sizes_of(ir)):
                outcome = executor.run(inputs_of(ir, sizes, number))
                found = [*outcome.outputs, *outcome.mutations.values()]
                said = [[evaluate(dim, sizes) for dim in tensor.shape] for tensor in ir.returns.inputs]
                if said != [list(value.shape) for value in found] or any(_drops_a_size(ir, sizes)):
                    return False
        except (TorchIRError, Warning):
            return False
    return not any(map(writes_in_place, ir.all_nodes()))


def _drops_a_size(ir: IR, sizes: Mapping[str, int]) -> Iterator[bool]:
    """Yield whether a size that `squeeze` keeps by its recorded shape is 1; optimised graphs refuse such a call."""
    for node in ir.all_nodes():
        yield any(isinstance(dim, str) and evaluate(dim, sizes) == 1 for dim in squeezed_sizes(node))


def sizes_of(ir: IR) -> list[Mapping[str, int]]:
    """Return sizes to run a graph at: a few common ones, and the smallest allowed."""
    if not ir.symbols:
        return [{}]
    smallest = {name: symbol.min or 0 for name, symbol in ir.symbols.items()}
    return [*points_of(ir)[:2], smallest]


def inputs_of(ir: IR, sizes: Mapping[str, int], seed: int, *, special: bool = False) -> Values:
    """Return random inputs with the graph's strides; with `special`, some are NaN, infinite or negative zero."""
    generator = torch.Generator().manual_seed(seed)
    draw = random.Random(seed)
    return [_value(tensor, sizes, generator, draw if special else None) for tensor in ir.graph_inputs]


def _value(
    tensor: TensorMeta, sizes: Mapping[str, int], generator: torch.Generator, special: random.Random | None
) -> torch.Tensor:
    shape = [int(evaluate(dim, sizes)) for dim in tensor.shape]
    made = random_values(shape, TORCH_DTYPES[tensor.dtype], generator)
    if special is not None and made.is_floating_point() and made.numel():
        flat = made.flatten()
        for place in special.sample(range(flat.numel()), max(1, flat.numel() // 4)):
            flat[place] = special.choice(SPECIAL)
        made = flat.reshape(shape)
    if tensor.stride is None:
        return made
    laid = torch.empty_strided(shape, [int(evaluate(step, sizes)) for step in tensor.stride], dtype=made.dtype)
    return laid.copy_(made)


def shrunk(ir: IR, fails: Callable[[IR], bool]) -> IR:
    """A smaller graph that still fails: results, nodes and calls go as long as it does."""
    current = ir
    while True:
        smaller = next((one for one in _smaller(current) if _is_sound(one) and fails(one)), None)
        if smaller is None:
            return current
        current = smaller


def _is_sound(ir: IR) -> bool:
    try:
        ir.check()
    except TorchIRError:
        return False
    return runs(ir)


def _smaller(ir: IR) -> Iterator[IR]:
    if (bare := _without_idle(ir)) is not None:
        yield bare
    for index in range(len(ir.graph_outputs)):
        if len(ir.graph_outputs) > 1:
            yield _with_outputs(ir, [out for place, out in enumerate(ir.graph_outputs) if place != index])
    for index in range(len(ir.mutations)):
        copy = ir.clone()
        copy.mutations = [pair for place, pair in enumerate(copy.mutations) if place != index]
        yield copy
    for index in range(len(ir.nodes)):
        yield from _without(ir, index)


def _without_idle(ir: IR) -> IR | None:
    """Return the graph without unused inputs, weights and functions; None if there are none."""
    copy = ir.clone()
    needed = {symbol.tensor for symbol in copy.symbols.values()} | {target for target, _ in copy.mutations}
    given, params = ([t for t in some if t._uses or t in needed] for some in (copy.graph_inputs, copy.params))
    drop_unused(copy, list(copy.functions))
    if (len(given), len(params), len(copy.functions)) == (len(ir.graph_inputs), len(ir.params), len(ir.functions)):
        return None
    copy.graph_inputs, copy.params = given, params
    return rebuilt(copy, copy.nodes, copy.graph_outputs)


def _with_outputs(ir: IR, outputs: list[TensorMeta]) -> IR:
    names = [tensor.name for tensor in outputs]
    copy = ir.clone()
    by_name = {tensor.name: tensor for tensor in copy.tensors()}
    return rebuilt(copy, copy.nodes, [by_name[name] for name in names])


def rebuilt(ir: IR, nodes: list[OpNode], outputs: list[TensorMeta]) -> IR:
    """A graph of the parts of another one, which is of no use any more."""
    made = IR(
        nodes,
        ir.graph_inputs,
        outputs,
        params=ir.params,
        mutations=ir.mutations,
        functions=ir.functions,
        symbols=ir.symbols.values(),
        constraints=ir.constraints,
    )
    ir.returns.inputs = ()
    return made


def _without(ir: IR, index: int) -> Iterator[IR]:
    """Return the graph without one node: unused, bypassed, or with its results as inputs."""
    node = ir.nodes[index]
    if node.is_call:
        copy = ir.clone()
        inline(copy, copy.nodes[index])
        yield copy
    for source in node.inputs if len(node.outputs) == 1 else ():
        if (source.shape, source.dtype) == (node.outputs[0].shape, node.outputs[0].dtype):
            copy = ir.clone()
            gone = copy.nodes.pop(index)
            gone.outputs[0].replace_all_uses_with(gone.inputs[node.inputs.index(source)])
            gone.inputs = ()
            yield copy
    copy = ir.clone()
    gone = copy.nodes.pop(index)
    gone.inputs = ()
    read = [made for made in gone.outputs if made._uses]
    if all(made.is_static for made in read):
        new = [TensorMeta(f"{made.name}_in", made.shape, made.dtype) for made in read]
        for old, given in zip(read, new, strict=True):
            old.replace_all_uses_with(given)
        copy.graph_inputs += new
        yield rebuilt(copy, copy.nodes, copy.graph_outputs)
