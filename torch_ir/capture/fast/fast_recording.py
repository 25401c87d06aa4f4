"""record_fast: a model and its inputs in, the IR that torch.export would have given out, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import fx, nn

from torch_ir.capture.export.dynamic import keep_promises, loosened, recorded_decisions, requested_minimums
from torch_ir.capture.fast.assembly import Assembly
from torch_ir.capture.fast.shape_recorder import Recorder
from torch_ir.capture.fast.shape_tensors import Ghost, NotCoveredError, SizeCannotVaryError, StaleAnswersError, running
from torch_ir.capture.instrument import (
    all_intercepted,
    builtins_as_exported,
    capturing,
    exporting,
    without_libraries,
)
from torch_ir.capture.program.no_op_copies import no_op_copies
from torch_ir.capture.quiet import quiet
from torch_ir.capture.state.ambient_notes import ambient_notes
from torch_ir.capture.state.default_dtype import write_default_dtypes
from torch_ir.capture.state.layout_questions import layout_questions
from torch_ir.capture.state.side_effects import left_as_it_was
from torch_ir.capture.state.tensor_leaks import contained
from torch_ir.capture.walk import modules
from torch_ir.errors import ExportError, TorchIRError
from torch_ir.ir import IR
from torch_ir.ir.json.json_text import uncollected
from torch_ir.ops.fast_paths import plain_attention, uncompiled
from torch_ir.ops.torch_internals import (
    TRANSFORMS,
    AutoDispatchBelowAutograd,
    DispatchKey,
    DispatchKeySet,
    ExcludeDispatchKeyGuard,
    is_compiler_loaded,
)

if TYPE_CHECKING:
    from torch_ir.capture.fast.varying_sizes import OpenSizes

_VIEWS_FOR_AUTOGRAD = DispatchKeySet(DispatchKey.ADInplaceOrView)
_REFUSED: tuple[tuple[Any, str, str], ...] = (
    (torch.autocast, "__enter__", "a region of autocast"),
    *((owner, name, told) for told, (owner, name) in TRANSFORMS.items()),
)


def record_fast(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    dynamic_shapes: Any = None,
    with_functions: bool = False,
) -> IR:
    """The IR of a model's run, or a NotCoveredError that says why this road is not for it.

    `dynamic_shapes` are the sizes that vary, as `torch.export` takes them.
    `with_functions` notes which torch function made each call, which torch.export does not.
    """
    if dynamic_shapes is None:
        return _record(model, args, kwargs, None, with_functions)
    minimums = requested_minimums(dynamic_shapes)
    try:
        return _record_open(model, args, kwargs, dynamic_shapes, with_functions, minimums)
    except SizeCannotVaryError:  # as far as torch can prove: the same steps as for torch.export
        ir = _record_open(model, args, kwargs, loosened(dynamic_shapes), with_functions, minimums)
    try:
        keep_promises(ir, model, (tuple(args), kwargs), dynamic_shapes)
    except ExportError as error:
        raise NotCoveredError(str(error)) from error
    return ir


def _record_open(*request: Any) -> IR:
    """Record with sizes that vary; once more where what earlier captures asked leads torch elsewhere."""
    try:
        return _record(*request)
    except StaleAnswersError:
        return _record(*request)


def _record(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    with_functions: bool,
    minimums: Mapping[str, int] | None = None,
) -> IR:
    with capturing(), uncollected(), contained(model) as tensors, ambient_notes() as notes:
        sizes = _open_sizes(model, args, kwargs, dynamic_shapes)
        recorder = Recorder(model, with_functions, sizes)
        tensors.watch("run", recorder.tape.run)
        try:
            with recorded_decisions(dynamic_shapes) as decisions:
                ir, refusal = _recorded(model, args, kwargs, recorder, minimums or {}, decisions), None
        except TorchIRError as error:
            kind = type(error) if isinstance(error, NotCoveredError) else NotCoveredError
            ir, refusal = None, kind(str(error))  # without the frames of forward, which hold tensors
        finally:
            recorder.tape.run.sizes = None
            del recorder
            if sizes is not None:
                sizes.close()
        if ir is None:
            raise refusal or NotCoveredError("")
    notes.check(ir)
    return ir


def _open_sizes(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], asked: Any) -> OpenSizes | None:
    """The sizes of a run that vary; None where all are fixed."""
    if asked is None:
        return None
    from torch_ir.capture.fast.size_environment import request_of  # slow, and of no use where sizes are fixed
    from torch_ir.capture.fast.varying_sizes import OpenSizes

    try:
        with quiet():
            return OpenSizes(request_of(model, args, kwargs, asked))
    except NotCoveredError:
        raise
    except Exception as error:  # torch refuses what was asked, and torch.export says how
        raise NotCoveredError(f"{type(error).__name__}: {error}") from error


def _recorded(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    recorder: Recorder,
    minimums: Mapping[str, int],
    decisions: Sequence[Any],
) -> IR:
    if any(isinstance(module, fx.GraphModule) for module in modules(model)):
        raise NotCoveredError("a graph of torch.fx, which tells itself where its calls come from")
    assembly = Assembly(model, recorder)
    run = recorder.tape.run
    copies = no_op_copies(recorder.version)
    with running(run), left_as_it_was(model), _as_ghosts(assembly), _as_when_exported() as lines, copies as no_ops:
        given = assembly.given(tuple(args), kwargs)
        try:
            with builtins_as_exported() if recorder.sizes is not None else nullcontext():
                returned = recorder.run(*given)
        except (Exception, SystemExit) as error:  # a model may fail on ghosts that runs on other tensors
            raise run.refusal or NotCoveredError(f"{type(error).__name__}: {error}") from error
        if run.refusal is not None:
            raise run.refusal
        ir = write_default_dtypes(assembly.ir(returned, minimums, decisions))
    ir.fixed_layout = lines[0] if lines else ir.fixed_layout or no_ops.written_later()
    return ir


@contextmanager
def _as_ghosts(assembly: Assembly) -> Iterator[None]:
    """Swap every parameter and buffer for a ghost; put the originals back on leaving."""
    swapped: list[tuple[MutableMapping[str, Any], str, Any]] = []
    ghosts: list[Ghost] = []
    others: list[tuple[MutableMapping[str, Any], str, Any]] = []
    try:
        for table, name, ghost in assembly.weights():
            swapped.append((table, name, table[name]))
            ghosts.append(ghost)
            table[name] = ghost
        for table, name, value in list(assembly.held_elsewhere()):
            others.append((table, name, table[name]))
            table[name] = value
        yield
        for (table, name, tensor), ghost in zip(swapped, ghosts, strict=True):
            if table.get(name) is not ghost or ghost.requires_grad is not tensor.requires_grad:
                raise NotCoveredError(
                    "forward puts another tensor in the place of a parameter or buffer, or freezes one"
                )
    finally:
        for table, name, old in reversed((*swapped, *others)):
            table[name] = old


@contextmanager
def _as_when_exported() -> Iterator[list[str]]:
    """Let the model see what it sees when torch.export runs it; yields the lines that ask for strides."""
    with ExitStack() as stack:
        if torch.get_default_device().type == "meta":  # literals in forward must keep their values
            stack.enter_context(torch.device("cpu"))
        for context in (quiet(), torch.no_grad(), plain_attention(), _refused(), exporting(), without_libraries()):
            stack.enter_context(context)
        if is_compiler_loaded():  # else nothing can be compiled
            stack.enter_context(uncompiled())
        stack.enter_context(AutoDispatchBelowAutograd())
        stack.enter_context(ExcludeDispatchKeyGuard(_VIEWS_FOR_AUTOGRAD))
        yield stack.enter_context(layout_questions())


def _refused() -> AbstractContextManager[None]:
    """End the run where a region of autocast or a transform of torch.func begins: torch writes them in its own way."""
    return all_intercepted({(owner, name): partial(_refuse, told) for owner, name, told in _REFUSED})


def _refuse(told: str, *_: Any) -> NoReturn:
    raise NotCoveredError(told)
