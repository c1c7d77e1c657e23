"""Compares a written model in OpenVINO with the integer engine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from msgspec.structs import replace as replace_fields

from intact.engines.cpu import detect_cpu
from intact.formats.base.block_layers import BlockLayers
from intact.formats.base.comparison import activations
from intact.formats.base.format import Feeds
from intact.formats.base.processor import AsDescribed, plan_on_processor
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, EngineBeside, compare
from intact.formats.openvino.intermediate import XML_FILE
from intact.formats.openvino.process import LIMIT, OpenVinoProcess, instructions_in_use
from intact.formats.openvino.run import ExecutedNode, OpenVinoRuntime, differences, openvino_version
from intact.formats.openvino.write import ONNX_FILE, OpenVinoModel
from intact.graph import OPS, OpKind
from intact.plan import QuantizedGraph, TensorEnd, quantization_points
from intact.program import Array, Program, Step, Tensor
from intact.program.arithmetic.ends import effective
from intact.program.lower import lower
from intact.program.operations import RESIDUAL_SLOT
from intact.targets import Target, Wrap
from intact.targets.advice import quantize_for_saturating_pairs

_Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_MOST_CODES = 1 << 8
"""OpenVINO leaves finer quantizers out."""


class Models(Protocol):
    """Compiled models of one file, which show different tensors."""

    @property
    def executed(self) -> Sequence[Sequence[ExecutedNode]]:
        """What runs, for each."""

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> list[tuple[_Arrays, _Arrays]]:
        """Return the outputs and observed tensors of each."""

    def close(self) -> None:
        """End what runs."""


@dataclass(frozen=True)
class View:
    """Which tensors are compared, and how OpenVINO shows them.

    Attributes:
        tensors: The tensors of the program, by name.
        names: What OpenVINO calls them, by the same.
        groups: For each compiled model the tensors that it returns: none, as its users run it; all
            that change nothing; the others one by one.
        ends: Where they lie in the plan.
        scales: What codes are counted in, by the tensor's name.
    """

    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]
    groups: Sequence[Sequence[str]]
    ends: frozenset[TensorEnd]
    scales: Mapping[str, npt.NDArray[np.float32]]

    @staticmethod
    def of(program: Program, exported: OpenVinoModel, floats: Sequence[str] = ()) -> View:
        """Find them in a program; floats that are shown besides have a model of their own."""
        found: dict[TensorEnd, Tensor] = {}
        scales: dict[str, npt.NDArray[np.float32]] = {}
        makers = {t.name: step for step in program.steps for t in step.outputs}
        for tensor in activations(program):
            encoding = tensor.encoding
            if encoding is None or encoding.quant_max - encoding.quant_min >= _MOST_CODES:
                continue
            if tensor.end in exported.codes and tensor.end not in found:
                found[tensor.end] = tensor
                # Counted in the steps that OpenVINO computes with, where it folds ends into
                # quantizers.
                scales[tensor.name] = effective(makers[tensor.name].arithmetic, encoding).scale
        tensors = {tensor.name: tensor for tensor in found.values()}
        names = {tensor.name: exported.codes[end] for end, tensor in found.items()}
        residuals = _residuals(program)
        # Showing a residual undoes the fusion that adds it: one model for each, so that the others
        # stay fused.
        alone = [[names[name]] for name in tensors if name in residuals]
        freely = [names[name] for name in tensors if name not in residuals]
        besides = [list(floats)] if floats else []
        # The first model shows nothing: it is the one that users run, and the others are held
        # against it.
        return View(tensors, names, [[], freely, *alone, *besides], frozenset(found), scales)

    def without(self, names: set[str]) -> View:
        """Return the same view without the tensors of these names in OpenVINO."""
        tensors = {n: t for n, t in self.tensors.items() if self.names[n] not in names}
        groups = [[name for name in group if name not in names] for group in self.groups]
        return replace(self, tensors=tensors, groups=groups)

    def codes(self, seen: Mapping[str, npt.NDArray[Any]], hidden: set[str]) -> dict[str, Array]:
        """Return the codes of what OpenVINO showed as floats, as the program stores them."""
        return {
            name: tensor.as_stored(self._codes_of(tensor, seen[self.names[name]]))
            for name, tensor in self.tensors.items()
            if name not in hidden
        }

    def _codes_of(self, tensor: Tensor, floats: npt.NDArray[Any]) -> npt.NDArray[Any]:
        encoding, scale = tensor.encoding, self.scales[tensor.name].astype(np.float64)
        if encoding is None:
            return floats.astype(np.int64)
        codes = np.rint(floats / scale).astype(np.int64) + encoding.zero_point
        held = codes.astype(encoding.dtype)  # all tensors of a batch are there at once
        return held if np.array_equal(held, codes) else codes


def _residuals(program: Program) -> set[str]:
    """Return the tensors that steps add to their sums, and those that they are moved from."""
    makers: dict[str, Step] = {t.name: step for step in program.steps for t in step.outputs}
    found = set()
    for step in program.steps:
        for tensor in step.inputs[RESIDUAL_SLOT:]:
            current = tensor
            while current is not None and current.name not in found:
                found.add(current.name)
                maker = makers.get(current.name)
                same = maker is not None and len(maker.activations) == 1
                source = maker.activations[0] if maker is not None and same else None
                current = source if source is not None and source.value == current.value else None
    return found


def hidden_tensors(
    program: Program,
    view: View,
    executed: Sequence[Sequence[ExecutedNode]],
    exported: OpenVinoModel,
) -> set[str]:
    """Return the tensors that cannot be shown as they are computed."""
    groups = {name: k for k, group in enumerate(view.groups) for name in group}
    touched = [_touched(program, differences(executed[0], each), exported) for each in executed]
    return {name for name in view.tensors if name in touched[groups[view.names[name]]]}


def _touched(program: Program, layers: frozenset[str], exported: OpenVinoModel) -> set[str]:
    """Return the tensors that are computed otherwise, or from what is."""
    found: set[str] = set()
    for step in program.steps:
        names = {*step.nodes, *(exported.codes.get(t.end, "") for t in step.outputs if t.end)}
        sources = {tensor.name for tensor in step.activations}
        if names_one(layers, names) or sources & found:
            found |= {tensor.name for tensor in step.outputs}
    return found


def names_one(layers: Iterable[str], names: set[str]) -> bool:
    """Check whether a layer is one of some nodes, or a part that OpenVINO took one apart into."""
    return any(name in names for layer in layers for name in _names_of(layer))


def _names_of(layer: str) -> tuple[str, str]:
    """Return the names of the nodes that a layer may be, or be a part of."""
    return layer, layer.split("/", maxsplit=1)[0]


# ---- where it runs ------------------------------------------------------------------------------


class _InProcess:
    """Models compiled in this process."""

    def __init__(self, path: Path, groups: Sequence[Sequence[str]], threads: int) -> None:
        self._models = [OpenVinoRuntime(path, group, threads=threads) for group in groups]
        self.executed = [model.executed for model in self._models]

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> list[tuple[_Arrays, _Arrays]]:
        """Return the outputs and observed tensors of each."""
        return [model.run(feeds) for model in self._models]

    def close(self) -> None:
        """Do nothing: nothing has to be ended here."""


@contextmanager
def compiled_models(
    exported: OpenVinoModel, view: View, limit: str, threads: int
) -> Iterator[tuple[Models, View]]:
    """Compile what was written, once for each group of tensors, and leave out those inside kernels.

    A kernel that falls apart when tensors are shown had some of these inside of it.
    """
    openvino_version()  # before files are written for it
    with tempfile.TemporaryDirectory() as folder:
        exported.save(Path(folder))
        path = Path(folder) / (XML_FILE if exported.ir_files else ONNX_FILE)
        # Each tensor that is left out may let a kernel fuse again, which hides others in turn.
        while True:
            models = _opened(path, view.groups, limit, threads)
            try:
                freely = set(view.groups[1])
                inside = freely & differences(models.executed[0], models.executed[1])
                inside = inside or freely & _between(exported.model.graph, *models.executed[:2])
                if not inside:
                    yield models, view
                    return
            finally:
                models.close()
            view = view.without(inside)


def _between(
    graph: ir.Graph, before: Sequence[ExecutedNode], after: Sequence[ExecutedNode]
) -> set[str]:
    """Return the tensors between layers of one kernel that falls apart where some are shown.

    OpenVINO names the ends of what it folds into a kernel, and not what lies between them.
    """
    same, found = set(after), set[str]()
    for kernel in before:
        if kernel in same or len(kernel.layers) < 2:
            continue
        own = [node for node in graph if str(node.name) in kernel.layers]
        behind = _reached(own, lambda node: node.successors())
        for node in behind & _reached(own, lambda node: node.predecessors()):
            found |= {str(value.name) for value in node.outputs}
    return found


def _reached(
    start: Iterable[ir.Node], following: Callable[[ir.Node], Iterable[ir.Node]]
) -> set[ir.Node]:
    """Return the nodes that some lead to, themselves included."""
    found, waiting = set[ir.Node](), list(start)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += following(node)
    return found


def _opened(path: Path, groups: Sequence[Sequence[str]], limit: str, threads: int) -> Models:
    if limit:
        return OpenVinoProcess(path, groups, limit, threads=threads)
    return _InProcess(path, groups, threads)


_SATURATING = "AVX2"
"""Instructions under which oneDNN's sums saturate in pairs, on any processor that has them."""

_CHANGED = "showing it would change how OpenVINO computes it"

_INSIDE = "it lies inside of one kernel of OpenVINO"

_NOT_MADE = "no step of the integer engine makes it, or OpenVINO leaves a quantizer this fine out"


def verify_openvino(
    plan: QuantizedGraph,
    exported: OpenVinoModel,
    batches: Iterable[Feeds],
    *,
    threads: int = 0,
    instructions: str | None = None,
) -> Verification:
    """Compare a written model in OpenVINO with the integers that its plan says.

    Args:
        plan: The plan.
        exported: What was written from it; OpenVINO's own files run, where there are any.
        batches: Inputs by name; every activation of a batch is held, several times.
        threads: Threads of the plugin; 0 takes all cores.
        instructions: The newest that oneDNN may use, in a process of its own; "" sets no limit,
            None one where the plan's target saturates in pairs and this processor does not.

    Raises:
        MissingExtraError: The package openvino is not installed.
        ExportError: OpenVINO refuses the model, or fails on it.
        DataError: The model is not that of the plan.
    """
    limit = _limit(plan.target) if instructions is None else instructions
    # Of the environment too, since oneDNN heeds what a user has set there.
    used = instructions_in_use(limit or os.environ.get(LIMIT, ""))
    program = lower(plan_on_processor(plan, used))
    described = AsDescribed(plan, program, threads)
    graph = exported.model.graph
    blocks = BlockLayers(plan, {str(value.name) for value in (*graph.inputs, *graph.outputs)})
    every = View.of(program, exported, blocks.watched)
    with compiled_models(exported, every, limit, threads) as (models, view):
        hidden = hidden_tensors(program, view, models.executed, exported)

        def run(feeds: Feeds) -> tuple[Arrays, Arrays]:
            (deployed, _), *groups = models.run(feeds)
            seen = {name: array for _, group in groups for name, array in group.items()}
            blocks.add({**feeds, **deployed, **seen})
            described.add(feeds, deployed)
            return deployed, view.codes(seen, hidden)

        executed = models.executed[0]
        in_float = float_nodes(plan, executed)
        computed = _without_saturation(program, in_float)
        reference = EngineBeside(computed, view.tensors.values(), threads=threads)
        found = compare(plan, _runtime(limit), run, reference, batches)
    found.layers = [each for each in found.layers if each.tensor not in hidden]
    found.end_to_end = [each for each in found.end_to_end if each.tensor not in hidden]
    found.float_layers = blocks.layers
    found.float_nodes = in_float
    found.integer_nodes = integer_nodes(plan, executed)
    found.not_compared = {
        **{str(view.tensors[name].end): _CHANGED for name in hidden},
        **{str(t.end): _INSIDE for n, t in every.tensors.items() if n not in view.tensors},
        **{
            str(point.end): _NOT_MADE
            for point in quantization_points(plan)
            if point.end in exported.codes and point.end not in view.ends
        },
    }
    saturates = plan.target.on(used).saturates_pairs
    remedy = quantize_for_saturating_pairs(plan.target) if saturates else ""
    found.processor = described.finding(used, saturates=saturates, remedy=remedy)
    return found


def _without_saturation(program: Program, in_float: Mapping[str, str]) -> Program:
    """Return the program as computed where products run in floats, whose sums hold every pair.

    What is fused behind a product may run alone, and in floats, without changing its sums.
    """
    products = {name for name, op_type in in_float.items() if _multiplies(op_type)}

    def held(step: Step) -> Step:
        if step.arithmetic.pairs is None or products.isdisjoint(step.nodes):
            return step
        exact = replace_fields(step.arithmetic, accumulator=Wrap(step.arithmetic.pairs.bits))
        return replace(step, arithmetic=exact)

    return replace(program, steps=tuple(map(held, program.steps)))


def _multiplies(op_type: str) -> bool:
    spec = OPS.get(op_type)
    return spec is not None and spec.kind is OpKind.COMPUTE


def _runtime(limit: str) -> str:
    name, limit = f"OpenVINO {openvino_version()}", limit or os.environ.get(LIMIT, "")
    return f"{name}, {LIMIT}={limit}" if limit else name


def _limit(target: Target) -> str:
    """Return the instructions under which sums saturate in pairs, where those of the target do."""
    return _SATURATING if target.saturates_pairs and not detect_cpu().saturates_pairs else ""


def float_nodes(plan: QuantizedGraph, executed: Sequence[ExecutedNode]) -> dict[str, str]:
    """Return the nodes that are planned for integers and run in floats, with their operators.

    What no executed node computes was folded away, and stands for nothing.
    """
    return {
        str(node.name): node.op_type
        for node, computing in _computing(plan, executed, quantized=True)
        if not any(each.in_integers for each in computing)
    }


def integer_nodes(plan: QuantizedGraph, executed: Sequence[ExecutedNode]) -> dict[str, str]:
    """Return the nodes that are planned in float and run with codes, with their operators."""
    return {
        str(node.name): node.op_type
        for node, computing in _computing(plan, executed, quantized=False)
        if _multiplies(node.op_type) and all(each.in_integers for each in computing)
    }


def _computing(
    plan: QuantizedGraph, executed: Sequence[ExecutedNode], *, quantized: bool
) -> Iterator[tuple[ir.Node, list[ExecutedNode]]]:
    """Yield the nodes that are planned for integers, or those in float, and what computes each."""
    by_name: dict[str, dict[int, ExecutedNode]] = {}
    for at, each in enumerate(executed):
        for name in (part for layer in each.layers for part in _names_of(layer)):
            by_name.setdefault(name, {})[at] = each
    for node in plan.graph.nodes:
        decision = plan.decisions.get(str(node.name))
        if decision is None or decision.quantized != quantized:
            continue
        # A node whose result is an output is called like that.
        names = {str(node.name), *(str(value.name) for value in node.outputs)}
        computing = {at: each for name in names for at, each in by_name.get(name, {}).items()}
        if computing:
            yield node, list(computing.values())
