"""Writes out loops: the turns of Loop and Scan.

1. `unroll_loops`: where the number of turns is known, the turns stand one behind the other.
2. `write_sequences`: what they append to a sequence is one sequence.
3. `choose_turns`: for runtimes without loops, all turns that a condition may end are computed, and
   a Where keeps the values from where it does.
4. `turn_of`: for runtimes with loops of their own, a turn is a model.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph.edit import Editor
from intact.graph.graph import values_read_inside
from intact.graph.ops import OpKind, constant_array, facts, input_value, is_constant
from intact.graph.passes.constant_nodes import compiled_constants
from intact.graph.passes.control_flow import (
    Inliner,
    check_choice,
    nodes_with_bodies,
    note_guards,
)
from intact.graph.passes.library import infer_shapes
from intact.graph.traversal import bodies, nodes_of
from intact.ops.operators import (
    And,
    Cast,
    Constant,
    Identity,
    Loop,
    Scan,
    SequenceConstruct,
    SequenceEmpty,
    SequenceInsert,
    is_a,
    types_of,
)

MOST_UNROLLED = 1000
"""Nodes that loops may become: each is observed, placed and written. What needs more stays a loop,
which a runtime computes in float."""

_ENDLESS = np.array(np.iinfo(np.int64).max)
"""Turns of a Loop that only its condition ends."""

_COPIES = types_of(Identity, Cast)
"""Operators behind which a condition is the same."""


def unroll_loops(model: ir.Model, most: int = MOST_UNROLLED) -> int:
    """Replace each Loop and Scan whose number of turns is known by its turns.

    A Loop turns so often as its first input says, or as its condition counts; a Scan once for each
    part of its inputs. Turns share the constants of the body.

    Args:
        model: Changed in place.
        most: The number of nodes that all turns may have; loops that need more stay.

    Returns:
        The number of nodes that the turns have.
    """
    nodes = nodes_with_bodies(model.graph, Loop, Scan)
    if not nodes:
        return 0
    inliner, written = Inliner(model), 0
    for node in nodes:
        body = next(bodies(node), None)
        turns = None if body is None else _turns(node, body, model.opset_imports.get("", 0))
        if body is None or turns is None:
            continue
        size = turns * sum(1 for _ in nodes_of(body))
        if written + size > most:
            continue
        written += max(size, 1)
        unroll = _unrolled_loop if is_a(node, Loop) else _unrolled_scan
        inliner.put_in_place(node, unroll(inliner, node, body, turns))
    return written


def write_sequences(model: ir.Model) -> int:
    """Write what turns append to a sequence as one sequence, which the library can fold.

    Returns:
        The number of changed nodes.
    """
    changed = 0
    for node in model.graph:
        if not is_a(node, SequenceInsert):
            continue
        before, item, place = (input_value(node, slot) for slot in range(3))
        maker = None if before is None else before.producer()
        at = None if place is None else constant_array(place)
        if item is None or (place is not None and at is None):
            continue
        if not is_a(maker, SequenceEmpty, SequenceConstruct):
            continue
        items = list(maker.inputs)  # an empty sequence has none
        items.insert(len(items) if at is None else int(at.item()), item)
        node.op_type = SequenceConstruct.name
        node.resize_inputs(len(items))
        for slot, each in enumerate(items):
            node.replace_input_with(slot, each)
        changed += 1
    return changed


def choose_turns(editor: Editor, node: ir.Node) -> None:
    """Compute all turns that a Loop may have, and keep its values from where its condition ends it.

    Raises:
        Unsupported: The number of turns has no bound or is large, turns are collected, or a value
            changes its shape.
    """
    body = next(bodies(node), None)
    most = constant_array(input_value(node, 0))
    if body is None or most is None or most.size != 1:
        raise Unsupported("the number of its turns has no bound")
    turns, given = int(most.item()), list(node.inputs[2:])
    if turns < 1:
        raise Unsupported("it never turns")
    if turns * sum(1 for _ in nodes_of(body)) > MOST_UNROLLED:
        raise Unsupported(f"its turns would be more than {MOST_UNROLLED} nodes")
    if len(node.outputs) != len(given) or any(value is None for value in given):
        raise Unsupported("it collects a value of each turn, as many as it turns")
    note_guards(node)
    inliner = Inliner(editor.model, editor.names)
    inliner.share_constants(node, body)
    goes_on = input_value(node, 1) or inliner.constant(node, np.array(True))
    states, choices = cast("list[ir.Value]", given), []
    picks = bool(body.inputs[0].uses()) and any(facts(n).moves_axes for n in nodes_of(body))
    number = inliner.count(node, body, 0)
    for turn in range(turns):
        count = inliner.count(node, body, turn)
        # Behind the end, a place of that number need not be there.
        number = inliner.choice(node, goes_on, count, number) if picks and turn else count
        turn_inputs = (number, goes_on, *states)
        condition, *changed = inliner.turn(node, body, turn_inputs)
        triples = [(goes_on, *pair) for pair in zip(changed, states, strict=True)]
        states = [inliner.choice(node, *triple) for triple in triples]
        choices += triples
        goes_on = inliner.node(node, And, [goes_on, condition])
    editor.model.graph.sort()
    infer_shapes(editor.model)
    for triple in choices:
        check_choice(*triple)
    editor.put_results_in_place(node, states)


def turn_of(node: ir.Node, model: ir.Model) -> tuple[ir.Model, list[ir.Value], list[str]]:
    """Return one turn of a Loop as a model of its own.

    Args:
        node: The Loop.
        model: It is in this one's graph, or in a body.

    Returns:
        The turn, whose inputs are those of the body and then what it reads of what is computed
        around it; those values; and the names of what the body gives: of outputs of the turn, or
        of inputs that it only hands on, which are no outputs.
    """
    body = next(bodies(node))
    read = [value for value in values_read_inside(node) if value.graph is node.graph]
    constants = [*body.initializers.values(), *filter(is_constant, read)]
    around = [value for value in read if not is_constant(value)]
    inputs = [*body.inputs, *around]
    computed = [value for value in dict.fromkeys(body.outputs) if value not in inputs]
    # A model has an output, also where all that turns do is to exchange values.
    outputs = computed or body.outputs[:1]
    # A view and its clone, since nodes belong to one graph.
    view = ir.GraphView(
        inputs,
        outputs,
        nodes=list(body),
        initializers=constants,
        opset_imports=dict(model.opset_imports),
        name="turn",
    )
    functions = [function.clone() for function in model.functions.values()]
    turn = ir.Model(view.clone(), ir_version=model.ir_version, functions=functions)
    return turn, around, [str(value.name) for value in body.outputs]


def _unrolled_loop(inliner: Inliner, node: ir.Node, body: ir.Graph, turns: int) -> list[ir.Value]:
    inliner.share_constants(node, body)
    goes_on = inliner.constant(node, np.array(True))
    states = [cast("ir.Value", value) for value in node.inputs[2:]]
    collected: list[list[ir.Value]] = [[] for _ in body.outputs[1 + len(states) :]]
    for turn in range(turns):
        turn_inputs = (inliner.count(node, body, turn), goes_on, *states)
        turn_outputs = inliner.turn(node, body, turn_inputs)[1:]
        states, parts = turn_outputs[: len(states)], turn_outputs[len(states) :]
        for each, part in zip(collected, parts, strict=True):
            each.append(part)
    return [*states, *(inliner.stack(node, parts, 0) for parts in collected)]


def _unrolled_scan(inliner: Inliner, node: ir.Node, body: ir.Graph, turns: int) -> list[ir.Value]:
    inliner.share_constants(node, body)
    inputs = [cast("ir.Value", value) for value in node.inputs]
    count = len(inputs) - _scanned(node)
    states, scanned = inputs[:count], inputs[count:]
    collected: list[list[ir.Value]] = [[] for _ in body.outputs[count:]]
    backwards = _listed(node, "scan_input_directions", len(scanned))
    axes = _listed(node, "scan_input_axes", len(scanned))
    for turn in range(turns):
        parts = [
            inliner.part(node, value, axis, turns - 1 - turn if is_back else turn)
            for value, axis, is_back in zip(scanned, axes, backwards, strict=True)
        ]
        turn_outputs = inliner.turn(node, body, (*states, *parts))
        states = turn_outputs[:count]
        for each, result in zip(collected, turn_outputs[count:], strict=True):
            each.append(result)
    axes = _listed(node, "scan_output_axes", len(collected))
    backwards = _listed(node, "scan_output_directions", len(collected))
    written = zip(collected, axes, backwards, strict=True)
    return [
        *states,
        *(inliner.stack(node, p[::-1] if is_back else p, axis) for p, axis, is_back in written),
    ]


def _turns(node: ir.Node, body: ir.Graph, opset: int) -> int | None:
    """Return how often a body runs; None where that is not known, or there is nothing to stack."""
    is_loop = is_a(node, Loop)
    given = node.inputs[2:] if is_loop else node.inputs
    states = len(given) - (0 if is_loop else _scanned(node))
    reads, writes = (2, 1) if is_loop else (0, 0)  # number of the turn and condition; condition
    fits = len(body.inputs) == reads + len(given) and (
        len(body.outputs) == writes + len(node.outputs)
    )
    if not fits or None in given or not 0 <= states <= len(node.outputs):
        return None
    turns = _loop_turns(node, body, opset) if is_loop else _scan_turns(node)
    return None if turns == 0 and len(node.outputs) > states else turns


def _loop_turns(node: ir.Node, body: ir.Graph, opset: int) -> int | None:
    most, given = input_value(node, 0), input_value(node, 1)
    turns = _ENDLESS if most is None else constant_array(most)
    begins = np.array(True) if given is None else constant_array(given)
    if turns is None or turns.size != 1:
        return None
    if turns.item() <= 0:
        return 0
    if begins is None or begins.size != 1:
        return None
    condition: ir.Value | None = body.outputs[0]
    while condition is not None and (maker := condition.producer()) is not None:
        if maker.op_type not in _COPIES or maker.domain != "":
            break
        condition = input_value(maker, 0)
    known = None if condition is None else ir.convenience.get_const_tensor(condition)
    wanted = int(turns.item()) if begins.item() else 0
    if known is not None:
        return wanted if known.numpy().all() else min(wanted, 1)
    return wanted if condition is body.inputs[1] else _counted_turns(node, body, wanted, opset)


def _counted_turns(node: ir.Node, body: ir.Graph, most: int, opset: int) -> int | None:
    """Count the turns of a loop that ends by a count of its own, as ``while i < 5`` does.

    Returns:
        None where the condition depends on more than single constants and what it counts.
    """
    number, *states = (body.inputs[0], *body.inputs[2:])
    given = dict(zip(states, node.inputs[2:], strict=True))
    following = dict(zip(states, body.outputs[1:], strict=False))
    read: dict[ir.Value, np.ndarray] = {}
    makers: set[ir.Node] = set()
    waiting = [body.outputs[0]]
    while waiting:
        value = waiting.pop()
        maker = value.producer()
        if value in read or maker in makers:
            continue
        if maker is not None and maker.graph is body:
            if not _counts(maker):
                return None
            makers.add(maker)
            waiting += [each for each in maker.inputs if each is not None]
            continue
        array = np.array(0) if value is number else constant_array(given.get(value, value))
        if array is None or array.size != 1:
            return None
        read[value] = array
        waiting += [following[value]] if value in following else []
    counted = {str(value.name): following[value].name for value in read if value in following}
    values = {str(value.name): array for value, array in read.items()}
    outputs = dict.fromkeys((str(body.outputs[0].name), *map(str, counted.values())))
    run = compiled_constants([each for each in body if each in makers], values, [*outputs], opset)
    for turn in range(min(most, MOST_UNROLLED) if run is not None else 0):
        if str(number.name) in values:
            values[str(number.name)] = np.array(turn)
        found = run(values) if run is not None else None
        if found is None:
            return None
        results = dict(zip(outputs, found, strict=True))
        values |= {name: results[str(source)] for name, source in counted.items()}
        if not results[str(body.outputs[0].name)].all():
            return turn + 1
    return most if run is not None and most <= MOST_UNROLLED else None


def _counts(node: ir.Node) -> bool:
    """Tell whether a node makes one number of single ones."""
    spec = facts(node)
    is_of_elements = spec.kind is OpKind.ELEMENTWISE or bool(spec.numpy) or spec.converts
    return not node.domain and (is_of_elements or is_a(node, Constant, Identity))


def _scanned(node: ir.Node) -> int:
    return int(node.attributes.get_int("num_scan_inputs", 0) or 0)


def _scan_turns(node: ir.Node) -> int | None:
    """Return the length that all inputs have along the axes that are scanned."""
    count = _scanned(node)
    lengths = set()
    axes = _listed(node, "scan_input_axes", count)
    for value, axis in zip(node.inputs[len(node.inputs) - count :], axes, strict=False):
        shape = None if value is None else value.shape
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        lengths.add(shape[axis])
    turns = lengths.pop() if len(lengths) == 1 else None
    return turns if isinstance(turns, int) else None


def _listed(node: ir.Node, name: str, count: int) -> list[int]:
    """Return an attribute of Scan, a number for each value; 0 where it is left out."""
    given = list(node.attributes.get_ints(name, ()))
    return [int(each) for each in given] if len(given) == count else [0] * count
