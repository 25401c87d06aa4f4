"""`record_fast`: record a model on shape-only tensors; the IR is byte-identical to that of torch.export."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import fx, nn

from torch_ir.capture.diagnosis import explained
from torch_ir.capture.export.dynamic import keep_promises, loosened, recorded_decisions, requested_minimums
from torch_ir.capture.fast.assembly import Assembly
from torch_ir.capture.fast.assigned_weights import Place, write_assigned
from torch_ir.capture.fast.data_queries import DataReadError
from torch_ir.capture.fast.second_run import Runs
from torch_ir.capture.fast.shape_recorder import Recorder
from torch_ir.capture.fast.shape_tensors import (
    ForwardRaisedError,
    Ghost,
    NotCoveredError,
    SizeCannotVaryError,
    StaleAnswersError,
    running,
)
from torch_ir.capture.instrument import all_intercepted, capturing, exporting, without_libraries
from torch_ir.capture.program.no_op_copies import no_op_copies
from torch_ir.capture.quiet import quiet
from torch_ir.capture.state.ambient_notes import ambient_notes
from torch_ir.capture.state.default_dtype import write_default_dtypes
from torch_ir.capture.state.layout_questions import layout_questions
from torch_ir.capture.state.side_effects import left_as_it_was
from torch_ir.capture.state.tensor_leaks import contained
from torch_ir.capture.state.weight_attributes import WeightAttributes
from torch_ir.capture.walk import modules
from torch_ir.errors import ExportError, TorchIRError
from torch_ir.ir import IR
from torch_ir.ir.graph.garbage_collection import uncollected
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
    from torch_ir.capture.data_branches.decision_paths import Path
    from torch_ir.capture.fast.known_values import KnownValues
    from torch_ir.capture.fast.varying_sizes import OpenSizes

_MOST_REPEATS = 64  # of a recording with fixed inputs
_VIEWS_FOR_AUTOGRAD = DispatchKeySet(DispatchKey.ADInplaceOrView)


def record_fast(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    dynamic_shapes: Any = None,
    with_functions: bool = False,
    fixed: Collection[torch.Tensor] = (),
    with_gradients: bool = False,
    path: Path | None = None,
    may_specialise: bool = False,
) -> IR:
    """Return the IR of a model; raise NotCoveredError with the reason if it cannot be recorded exactly.

    `dynamic_shapes` are the sizes that vary, as `torch.export` takes them.
    `with_functions` records the torch function of each call, which torch.export does not.
    `fixed` are the inputs with fixed values.
    `with_gradients` is for a training step, which runs as in eager mode and computes gradients itself.
    `path` has the outcomes of branches on data.
    `may_specialise` makes the graph one for the numbers and sizes that the data has, where Python needs them.
    """
    if fixed:
        return _record_fixed(model, args, kwargs, with_functions, fixed)
    if dynamic_shapes is None:
        options: dict[str, Any] = {"with_gradients": with_gradients, "path": path, "may_specialise": may_specialise}
        try:
            return _record(model, args, kwargs, None, with_functions, **options)
        except DataReadError:
            if path is not None:
                path.again()
            return _record(model, args, kwargs, None, with_functions, **options, follows_data=True)
    minimums = requested_minimums(dynamic_shapes)
    try:
        return _record_open(model, args, kwargs, dynamic_shapes, with_functions, minimums, path=path)
    except SizeCannotVaryError:  # as far as torch can prove; continue as with torch.export
        ir = _record_open(model, args, kwargs, loosened(dynamic_shapes), with_functions, minimums, path=path)
    try:
        keep_promises(ir, model, (tuple(args), kwargs), dynamic_shapes)
    except ExportError as error:
        raise NotCoveredError(str(error)) from error
    return ir


def _record_open(*request: Any, path: Path | None) -> IR:
    """Record with sizes that vary; once more where Python reads data, or where earlier answers lead torch elsewhere."""
    follows_data = is_again = False
    while True:
        if path is not None:
            path.again()
        try:
            return _record(*request, path=path, follows_data=follows_data)
        except DataReadError:
            follows_data = True
        except StaleAnswersError:
            if is_again:
                raise
            is_again = True


def _record_fixed(
    model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], with_functions: bool, fixed: Collection[torch.Tensor]
) -> IR:
    """Record with fixed inputs; again where a computed tensor must be recorded, because the model writes to it."""
    from torch_ir.capture.fast.known_values import KnownValues

    recorded: set[int] = set()
    while True:
        values = KnownValues(fixed, recorded)
        try:
            return _record(model, args, kwargs, None, with_functions, values=values)
        except NotCoveredError:
            if values.written is None or len(recorded) == _MOST_REPEATS:
                raise
            recorded.add(values.written)


def _record(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    with_functions: bool,
    minimums: Mapping[str, int] | None = None,
    values: KnownValues | None = None,
    **options: Any,
) -> IR:
    surroundings = nullcontext() if dynamic_shapes is None else _without_locations()
    with capturing(), surroundings, uncollected(), contained(model) as tensors, ambient_notes() as notes:
        sizes = _open_sizes(model, args, kwargs, dynamic_shapes)
        if values is None:
            recorder = Recorder(model, with_functions, sizes, **options)
        else:
            recorder = values.recorder(model, with_functions)
        tensors.watch("run", recorder.tape.run)
        try:
            with recorded_decisions(dynamic_shapes) as decisions:
                ir, refusal = _recorded(model, args, kwargs, recorder, minimums or {}, decisions), None
        except TorchIRError as error:
            is_own = isinstance(error, NotCoveredError)  # a copy has no traceback, whose frames hold tensors
            ir, refusal = None, copy(error) if is_own else NotCoveredError(str(error), cause=error.cause)
        finally:
            recorder.queries.close()
            recorder.tape.run.sizes = recorder.tape.run.recorder = None
            del recorder
            if sizes is not None:
                sizes.close()
        if ir is None:
            raise refusal or NotCoveredError("")
    notes.check(ir)
    return ir


def _without_locations() -> AbstractContextManager[None]:
    from torch_ir.capture.fast.size_environment import without_locations  # slow to import, and only for open sizes

    return without_locations()


def _open_sizes(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], asked: Any) -> OpenSizes | None:
    """Return the open sizes of a run; None if all are fixed."""
    if asked is None:
        return None
    from torch_ir.capture.fast.size_environment import request_of  # slow to import, and only needed for open sizes
    from torch_ir.capture.fast.varying_sizes import OpenSizes

    try:
        with quiet():
            return OpenSizes(request_of(model, args, kwargs, asked))
    except NotCoveredError:
        raise
    except Exception as error:  # torch rejects the request, and torch.export will explain it
        raise NotCoveredError(f"{type(error).__name__}: {error}") from error


def _recorded(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    recorder: Recorder,
    minimums: Mapping[str, int],
    decisions: Sequence[Any],
) -> IR:
    if any(issubclass(kind, fx.GraphModule) for kind in set(map(type, modules(model)))):
        raise NotCoveredError("a torch.fx GraphModule, which has its own source lines")
    assembly = Assembly(model, recorder)
    run = recorder.tape.run
    copies = no_op_copies(recorder.version)
    surroundings = _as_in_eager_mode if recorder.with_gradients else _as_when_exported
    runs = Runs(assembly, surroundings)
    again = partial(runs.frozen, model) if recorder.can_repeat else None
    with running(run), left_as_it_was(model, again=again):
        with _as_ghosts(assembly) as runs.places, surroundings() as lines, copies as no_ops:
            given = assembly.given(tuple(args), kwargs)
            run.recorder = recorder
            recorder.queries.begin(assembly.given_tensor)
            try:
                returned = recorder.run(*given)
            except (Exception, SystemExit) as error:  # a model may fail on ghosts and run on other tensors
                raise run.refusal or _raised(error, recorder) from error
            if run.refusal is not None:
                raise run.refusal
            runs.returned = returned = write_assigned(recorder, runs.places, returned)
            ir = recorder.guarded(
                write_default_dtypes(assembly.ir(returned, minimums, decisions)), assembly.inputs_by_name()
            )
            recorder.generator.reuse(ir)
        ir.fixed_layout = lines[0] if lines else ir.fixed_layout or no_ops.written_later()
    return ir


def _raised(error: BaseException, recorder: Recorder) -> ForwardRaisedError:
    if not recorder.queries.is_hypothetical:
        return ForwardRaisedError(f"{type(error).__name__}: {error}")
    explanation = explained(error, recorder.model)
    return ForwardRaisedError(str(explanation), cause=explanation.cause)


@contextmanager
def _as_ghosts(assembly: Assembly) -> Iterator[list[Place]]:
    """Replace every parameter and buffer by a ghost; restore the originals at the end. Yield what was replaced."""
    swapped: list[tuple[MutableMapping[str, Any], str, Any]] = []
    ghosts: list[Ghost] = []
    attributes = WeightAttributes()
    others: list[tuple[MutableMapping[str, Any], str, Any]] = []
    try:
        for table, name, ghost in assembly.weights():
            swapped.append((table, name, table[name]))
            ghosts.append(ghost)
            attributes.give(name, table[name], ghost)
            table[name] = ghost
        for table, name, value in list(assembly.held_elsewhere()):
            others.append((table, name, table[name]))
            table[name] = value
        yield [(table, name, table[name]) for table, name, _ in (*swapped, *others)]
        for (_, name, tensor), ghost in zip(swapped, ghosts, strict=True):
            if ghost.requires_grad is not tensor.requires_grad:
                raise NotCoveredError(f"forward changes the requires_grad of {name!r}")
        if name := next(attributes.changed(), ""):
            raise NotCoveredError(f"forward changes {name}, an attribute of a parameter or buffer")
    finally:
        for table, name, old in reversed((*swapped, *others)):
            table[name] = old


@contextmanager
def _as_when_exported() -> Iterator[list[str]]:
    """Run the model in the environment of torch.export; yield the lines that read strides."""
    with _as_in_eager_mode() as lines, ExitStack() as stack:
        for context in (_refused(), exporting()):
            stack.enter_context(context)
        stack.enter_context(AutoDispatchBelowAutograd())
        stack.enter_context(ExcludeDispatchKeyGuard(_VIEWS_FOR_AUTOGRAD))
        yield lines


@contextmanager
def _as_in_eager_mode() -> Iterator[list[str]]:
    """Run the model without compiled code, fused layers and libraries; yield the lines that read strides."""
    with ExitStack() as stack:
        if torch.get_default_device().type == "meta":  # literals in forward must keep their values
            stack.enter_context(torch.device("cpu"))
        for context in (quiet(), torch.no_grad(), plain_attention(), without_libraries()):
            stack.enter_context(context)
        if is_compiler_loaded():  # else there is no compiled code
            stack.enter_context(uncompiled())
        yield stack.enter_context(layout_questions([]))


def _refused() -> AbstractContextManager[None]:
    """Refuse transforms of torch.func, which torch.export records in a special form."""
    return all_intercepted({place: partial(_refuse, text) for text, place in TRANSFORMS.items()})


def _refuse(text: str, *_: Any) -> NoReturn:
    raise NotCoveredError(text)
