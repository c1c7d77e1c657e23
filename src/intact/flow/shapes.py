"""Gives the float model the shapes that a user asks for, or that the samples have."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from intact.data.feeding import Feeding, takes_feeds
from intact.data.preprocess import Preprocess
from intact.data.signature import input_specs
from intact.data.sources import has_image_steps
from intact.engines.session import Optimization, make_session
from intact.errors import ModelError, SearchError, UsageError
from intact.formats.registry import expressible
from intact.graph import Graph, facts, normalize
from intact.graph.fixed_inputs import fix_arrays, fixed_inputs_of
from intact.graph.passes.input_shapes import Sizes, shown_option
from intact.ops import MEASURING
from intact.plan import Note, NoteKind, Overrides
from intact.plan.preparation import graphs_for
from intact.recipe import groups, numbers
from intact.recipe.kinds import Kind
from intact.results.recipes import open_fed
from intact.results.values import Values, sizes_decide
from intact.targets import Target

if TYPE_CHECKING:
    import onnx_ir as ir

    from intact.data.stream import Samples
    from intact.recipe.groups import CalibrationOptions, DataSource

Shapes: TypeAlias = Mapping[str, Sizes]
T = TypeVar("T")
_LOGGED = "input_shape"
_LOGGED_VALUES = "input_value"


class ShapedModels(msgspec.Struct, frozen=True):
    """A float model for some formats.

    Attributes:
        graphs: Normalized graphs, one for each set of formats; those with the same needs share it.
        data: The samples, with those that were looked at.
        shapes: Shapes of the inputs, as they were given or found, for formats of fixed sizes.
        notes: What the user should know of them.
        fixed: Inputs that the user fixed.
        folded: The nodes and operator types that only the model with open sizes has: what computes
            sizes is a constant where they are fixed. A user may name them nevertheless.
    """

    graphs: tuple[Graph, ...]
    data: DataSource | None
    shapes: Shapes
    notes: tuple[Note, ...] = ()
    fixed: frozenset[str] = frozenset()
    folded: frozenset[str] = frozenset()

    def overrides(self, given: Overrides | None, graph: Graph) -> Overrides | None:
        """Return what a user overrides in one of the graphs, or in what was made of it."""
        return given and given.without(self.folded - _names(graph))

    def notes_of(self, graph: Graph) -> tuple[Note, ...]:
        """List what the user should know of one of the graphs, or of what was made of it."""
        names = [name for name in graph.fixed_inputs if name not in self.fixed]
        return (*self.notes, *([_constants_note(names)] if names else []))


def with_shapes(model: ir.Model, given: Shapes | None, *, in_place: bool = False) -> Graph:
    """Normalize a model with the shapes that a user gives; in place where nobody else has it.

    Raises:
        UsageError: The model has no such input, or cannot compute with such a shape.
        ModelError: As of `normalize`.
    """
    if not given:
        return normalize(model, in_place=in_place)
    try:
        # Checked by a session: shape inference alone lets contradictions pass.
        graph = normalize(model, given, in_place=in_place)
        make_session(graph.model, threads=1, optimization=Optimization.NONE)  # infers all shapes
    except ModelError as error:
        shown = " ".join(shown_option(name, sizes) for name, sizes in given.items())
        raise UsageError(
            f"{shown}: the model cannot compute with that: {_cause(error)}",
            remedy="give the shape that it is made for",
        ) from error
    return graph


def _cause(error: ModelError) -> str:
    """Return what an error says without its remedy, which is for models without such shapes."""
    return error.with_flags.partition(";")[0]


def shape_model(
    model: ir.Model,
    options: CalibrationOptions,
    given: Shapes | None,
    data: DataSource | None,
    preprocess: Preprocess,
    formats: Sequence[Sequence[str]],
) -> ShapedModels:
    """Normalize a model for several sets of formats.

    Formats without float16 get float32 inputs and outputs. Formats of fixed sizes get those of the
    samples, where all samples agree. The others keep the sizes open that the user does not give,
    unless sizes decide which branches of If run: nothing can be quantized in such branches, nor
    behind them, where ranks are unknown.

    Args:
        model: The float model.
        options: How the samples are read.
        given: Shapes by input.
        data: The samples.
        preprocess: What is done to them.
        formats: What is written, a set for each result.

    Raises:
        UsageError: A shape contradicts the model.
        DataError: The samples do not fit the model.
    """
    found = _shape_for_formats(model, options, given, data, preprocess, formats)
    one = {id(graph): graph for graph in found.graphs}
    if not all(expressible(names).batches for names in formats):
        one = {name: _of_one_sample(model, graph) for name, graph in one.items()}
    graphs = tuple(
        graph if expressible(names).batches else one[id(graph)]
        for graph, names in zip(found.graphs, formats, strict=True)
    )
    found = msgspec.structs.replace(found, graphs=graphs)
    # Made once for each graph, so that formats that share one go on sharing it.
    wide = {id(graph): graph.with_wide_ports() for graph in found.graphs}
    graphs = tuple(
        graph if expressible(names).half_ends else wide[id(graph)]
        for graph, names in zip(found.graphs, formats, strict=True)
    )
    return msgspec.structs.replace(found, graphs=graphs)


def expand_graphs(graphs: Sequence[Graph], op_types: Sequence[str]) -> dict[int, Graph]:
    """Return each graph with operators expanded, by the identity of what it was before."""
    found = {id(graph): graph for graph in graphs}
    if op_types:
        from intact.graph.passes.expand import expand

        found = {name: expand(graph, op_types) for name, graph in found.items()}
    return found


def prepare_graphs(
    graphs: Sequence[Graph],
    made: Mapping[int, Graph],
    targets: Sequence[Target],
    apart: Sequence[str],
) -> list[Graph]:
    """Prepare what is planned on; targets that share a graph and its needs go on sharing it.

    Args:
        graphs: One for each target.
        made: What is planned on, by the identity of the graph.
        targets: The targets.
        apart: Operator types that the user expands.
    """
    found: dict[int, Graph] = {}
    for name, graph in made.items():
        # Together, since what targets have in common is prepared once.
        members = [index for index, each in enumerate(graphs) if id(each) == name]
        own = graphs_for(graph, [targets[index] for index in members], apart)
        found.update(zip(members, own, strict=True))
    return [found[index] for index in range(len(targets))]


def _shape_for_formats(
    model: ir.Model,
    options: CalibrationOptions,
    given: Shapes | None,
    data: DataSource | None,
    preprocess: Preprocess,
    formats: Sequence[Sequence[str]],
) -> ShapedModels:
    """Normalize a model for formats of fixed sizes and for others."""
    graph = with_shapes(model, given)
    decide = sizes_decide(graph)
    able = [expressible(names) for names in formats]
    fixed = [decide or not each.open_sizes for each in able]
    shapes: dict[str, Sizes] = dict(given or {})
    if data is None or not any(fixed) or not _leaves_open(graph, options):
        return ShapedModels((graph,) * len(formats), data, shapes)
    found, data, samples = _common_shapes(graph, options, data, preprocess)
    if not found:
        return ShapedModels((graph,) * len(formats), data, shapes)
    # An empty name is that of the only input, which the samples name.
    named = {name: sizes for name, sizes in shapes.items() if name}
    static, shapes = _fix_sizes(model, {**named, **found})
    made = {
        numbers: _fix_inputs(model, static, shapes, samples, numbers=numbers)
        for numbers in {not each.number_inputs for each in able if decide or not each.open_sizes}
    }
    graphs = tuple(
        made[not each.number_inputs] if is_fixed else graph
        for each, is_fixed in zip(able, fixed, strict=True)
    )
    notes = (_fixed_note(shapes),) if decide else ()
    folded = frozenset.intersection(*(_names(graph) - _names(each) for each in made.values()))
    own = frozenset(fixed_inputs_of(model))
    return ShapedModels(graphs, data, shapes, notes, own, folded)


def _fix_inputs(
    model: ir.Model, static: Graph, shapes: Shapes, samples: Samples, *, numbers: bool
) -> Graph:
    """Make inputs constants that are the same in all windows of text, where a format needs that.

    Args:
        model: The float model.
        static: The same, normalized, with known sizes.
        shapes: Shapes by input.
        samples: The samples; masks of which some tokens are padded stay inputs.
        numbers: Whether whole numbers that are not looked up are no inputs of the format.
    """
    from intact.data.text.inputs import TokenInputs  # formats of open sizes need it not

    inputs = TokenInputs.of(static)
    constants = {} if inputs is None else dict(inputs.constant(numbers=numbers))
    if inputs is not None and numbers and constants:
        for name in samples.differing(constants) - inputs.constant(numbers=False).keys():
            del constants[name]
    if not constants:
        return static
    # As constants have one sample, so has the model.
    sizes = {
        name: (1, *each[1:]) if each else ()
        for name, each in shapes.items()
        if name not in constants
    }
    return normalize(fix_arrays(model, constants), sizes)


def _names(graph: Graph) -> frozenset[str]:
    """Return the names of nodes, and the operator types."""
    return frozenset(name for node in graph.nodes for name in (str(node.name), node.op_type))


def _fixed_note(shapes: Shapes) -> Note:
    flags = " ".join(shown_option(name, sizes) for name, sizes in shapes.items())
    return Note(
        NoteKind.REWRITE,
        "",
        "sizes of inputs are fixed to those of the samples: they decide which branches of If run",
        remedy=f"give others: {flags}",
    )


def _constants_note(names: Sequence[str]) -> Note:
    shown = ", ".join(map(repr, names))
    return Note(
        NoteKind.REWRITE,
        "",
        f"no input any more, but a constant, as all samples have the same there: {shown}",
        remedy="give samples that differ there (of which some are padded), and it stays an input",
    )


def _of_one_sample(model: ir.Model, graph: Graph) -> Graph:
    """Fix the batch at one sample, for formats that take one, where samples are joined."""
    if not any(map(_joins_samples, graph.nodes)):
        return graph
    sizes = {name: (1, *spec.shape[1:]) for name, spec in input_specs(graph).items() if spec.shape}
    return normalize(model, sizes)


def _joins_samples(node: ir.Node) -> bool:
    """Tell whether a node makes rows of which a sample has several: ``[batch * tokens, C]``."""
    data, result = (node.inputs[0] if node.inputs else None), node.outputs[0]
    if data is None or not facts(node).reshapes:
        return False
    shapes = data.shape, result.shape
    if any(not shape or isinstance(shape[0], int) for shape in shapes):
        return False
    sizes = [[n for n in shape[1:] if isinstance(n, int)] for shape in shapes if shape]
    is_known = all(len(n) == len(s) - 1 for n, s in zip(sizes, shapes, strict=True) if s)
    return is_known and math.prod(sizes[0]) > math.prod(sizes[1])


def _fix_sizes(model: ir.Model, shapes: dict[str, Sizes]) -> tuple[Graph, dict[str, Sizes]]:
    """Normalize a model with the shapes of samples; the batch too, if it computes with that."""
    graph = normalize(model, shapes)
    # The batch stays open where nothing depends on it: a file that takes any batch serves more.
    if not _computes_sizes(graph):
        return graph, shapes
    batch = {name: spec.shape[0] or 1 for name, spec in input_specs(graph).items() if spec.shape}
    shapes = {name: (batch[name], *sizes[1:]) if sizes else () for name, sizes in shapes.items()}
    return normalize(model, shapes), shapes


def _computes_sizes(graph: Graph) -> bool:
    return any(node.op_type in MEASURING for node in graph.nodes)


def shape_options(shapes: Shapes) -> dict[str, str]:
    """Return the shapes as an option that the log of a search has; none without shapes."""
    return {_LOGGED: json.dumps(shapes, sort_keys=True)} if shapes else {}


def value_options(values: Values | None) -> dict[str, str]:
    """Return the values of fixed inputs as such an option; none without values."""
    return {_LOGGED_VALUES: json.dumps(values, sort_keys=True)} if values else {}


def logged_shapes(options: Mapping[str, str]) -> Shapes:
    """Read the shapes of a search out of its log.

    Raises:
        SearchError: They cannot be read.
    """
    return _read_logged(options, _LOGGED, numbers.Shapes())


def logged_values(options: Mapping[str, str]) -> Values:
    """Read the values of fixed inputs out of the log of a search.

    Raises:
        SearchError: They cannot be read.
    """
    return _read_logged(options, _LOGGED_VALUES, groups.INPUT_VALUES)


def _read_logged(
    options: Mapping[str, str], name: str, kind: Kind[Mapping[str, T]]
) -> Mapping[str, T]:
    if name not in options:
        return {}
    try:
        return kind.check(json.loads(options[name]))
    except ValueError as error:
        raise SearchError(f"the log's {name} cannot be read", remedy="search again") from error


def _leaves_open(graph: Graph, options: CalibrationOptions) -> bool:
    """Tell whether sizes of an input are not known: the batch too, if the model computes it."""
    specs = input_specs(graph)
    with_batch = takes_feeds(specs, _feeding(options)) or _computes_sizes(graph)
    return any(None in spec.shape[0 if with_batch else 1 :] for spec in specs.values())


def _feeding(options: CalibrationOptions) -> Feeding:
    return Feeding(tuple(options.no_batch), options.state or {})


def _common_shapes(
    graph: Graph, options: CalibrationOptions, data: DataSource, preprocess: Preprocess
) -> tuple[Shapes, DataSource, Samples]:
    """Find the shapes that all samples have, of inputs that leave sizes open; none if they differ.

    Of an iterator, which gives its samples once, only the first batch is looked at: the others are
    compared with it when they are read.
    """
    looked: DataSource = data
    if isinstance(data, Iterator):
        # Taken out and put back in front: the samples of an iterator are not to be lost.
        begin = list(itertools.islice(data, 1))
        looked, data = begin, itertools.chain(begin, data)
    is_uniform = has_image_steps(looked, options.transform)  # its images are brought to one size
    samples = open_fed(
        looked,
        graph,
        options,
        preprocess=preprocess,
        # One image tells all.
        limit=1 if is_uniform else options.samples,
        mask=options.mask,
        skip_bad=options.skip_bad,
    )
    shapes = samples.common_shapes()
    batch = () if samples.takes_feeds else (None,)
    found = {name: (*batch, *shape[len(batch) :]) for name, shape in shapes.items()}
    return found, data, samples
