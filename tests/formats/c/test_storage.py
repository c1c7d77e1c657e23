"""Where tensors lie: the plan of memory, views, results in place, outputs at the caller.

Nothing alive is overwritten, nothing trodden on, and little is wasted.
"""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from intact.engines.integer import IntegerEngine
from intact.formats.c.files import static_shapes
from intact.formats.c.run import CRuntime
from intact.formats.c.storage import ALIGNMENT, Arena, Buffer, Places, plan_arena, plan_places
from intact.formats.c.write import write_c
from intact.ops import functions
from intact.program import Program, Step, Tensor
from intact.program import operations as ops
from intact.program.operations import Binary
from tests.formats.c import cases
from tests.formats.c.random_programs import ENCODING, random_program
from tests.formats.c.test_kernels import SANITIZED


def chain(
    *links: tuple[ops.Operation, tuple[str, ...], tuple[str, ...]], **shapes: object
) -> Program:
    """Return a program of links between named tensors; ``x`` is fed and ``y`` handed out."""
    tensors = {name: Tensor(name, shape, ENCODING) for name, shape in shapes.items()}  # type: ignore[arg-type]
    steps = tuple(
        Step(
            f"s{at}",
            operation,
            tuple(tensors[name] for name in inputs),
            tuple(tensors[name] for name in outputs),
            cases.DOUBLE,
        )
        for at, (operation, inputs, outputs) in enumerate(links)
    )
    return Program({"x": tensors["x"]}, {"y": tensors["y"]}, steps)


def places_of(program: Program) -> Places:
    return plan_places(program, static_shapes(program), {"x": "px"}, {"y": "py"})


NEGATE = ops.Function(functions.negative)
FLAT = ops.Reshape((-1, 24))


def test_a_result_takes_the_place_of_its_operand() -> None:
    places = places_of(
        chain(
            *((ops.Transpose((0, 2, 1)), ("x",), ("a",)), (NEGATE, ("a",), ("b",))),
            (ops.Transpose((0, 2, 1)), ("b",), ("y",)),
            x=(None, 4, 6),
            a=(None, 6, 4),
            b=(None, 6, 4),
            y=(None, 4, 6),
        )
    )
    assert places.pointer("a") == places.pointer("b") == "arena"
    assert (places.pointer("x"), places.pointer("y")) == ("px", "py")
    assert places.arena.size == 24


def test_an_operand_that_is_read_later_keeps_its_place() -> None:
    add = ops.Elementwise(Binary.ADD)
    places = places_of(
        chain(
            *((ops.Transpose((0, 2, 1)), ("x",), ("a",)), (NEGATE, ("a",), ("b",))),
            *((add, ("a", "b"), ("c",)), (ops.Transpose((0, 2, 1)), ("c",), ("y",))),
            x=(None, 4, 6),
            a=(None, 6, 4),
            b=(None, 6, 4),
            c=(None, 6, 4),
            y=(None, 4, 6),
        )
    )
    assert places.pointer("a") != places.pointer("b")
    assert places.pointer("c") == places.pointer("a")
    assert places.arena.size == 48


def test_views_take_no_memory() -> None:
    places = places_of(
        chain(
            *(
                (ops.Transpose((0, 2, 1)), ("x",), ("a",)),
                (ops.Split(1, (2, 4)), ("a",), ("b", "c")),
            ),
            *((FLAT, ("a",), ("d",)), (ops.Concat(1), ("c", "b"), ("e",))),
            (ops.Elementwise(Binary.ADD), ("e", "a"), ("y",)),
            x=(None, 4, 6),
            a=(None, 6, 4),
            b=(None, 2, 4),
            c=(None, 4, 4),
            d=(None, 24),
            e=(None, 6, 4),
            y=(None, 6, 4),
        )
    )
    base = places.pointer("a")
    start = int(base.partition(" + ")[2] or 0)
    assert places.pointer("b") == places.pointer("d") == base
    assert places.pointer("c") == f"arena + {start + 8}"
    assert places.arena.size == 48


def test_an_output_that_is_a_view_of_the_input_is_copied() -> None:
    program = chain((FLAT, ("x",), ("y",)), x=(None, 4, 6), y=(None, 24))
    written = write_c(program)
    assert "memcpy(y, x, 24);" in written.files["model.c"]
    assert written.arena_bytes == 0


def test_ends_that_no_step_makes() -> None:
    """An input handed out, one tensor handed out twice, and a constant."""
    held = Tensor("k", (1, 3), ENCODING, np.array([[1, -2, 3]], np.int8))
    program = chain(
        (FLAT, ("x",), ("a",)), (NEGATE, ("a",), ("y",)), x=(None, 4, 6), a=(None, 24), y=(None, 24)
    )
    x, y = program.inputs["x"], program.outputs["y"]
    unread = Tensor("u", (None, 2), ENCODING)
    ends = {"one": y, "two": y, "same": x, "held": held}
    program = Program({"x": x, "u": unread}, ends, program.steps)
    fed = cases.feeds(program, 4)
    with CRuntime(write_c(program), flags=SANITIZED) as runtime:
        found = runtime.run(fed)
    assert np.array_equal(found["same"], fed["x"])
    assert np.array_equal(found["one"], found["two"])
    assert np.array_equal(found["one"], IntegerEngine(program).run(fed).outputs["one"])
    assert found["held"].tolist() == [[1, -2, 3]] * 4
    empty = write_c(Program({"x": x}, {"y": x}, ()))
    assert empty.arena_bytes == empty.flash_bytes == 0


def test_random_networks_compute_what_the_engine_computes() -> None:
    programs = {f"n{seed}": random_program(seed) for seed in range(40)}
    program = cases.joined(programs)
    fed = cases.feeds(program, 3)
    with CRuntime(write_c(program), flags=(*SANITIZED, "-O0")) as runtime:
        found = runtime.run(fed)
    wanted = IntegerEngine(program).run(fed).outputs
    wrong = [name for name, codes in wanted.items() if not np.array_equal(codes, found[name])]
    assert wrong == []
    assert len(wanted) > 150


def test_arenas_of_random_networks_are_near_what_is_alive() -> None:
    sizes = [write_c(random_program(seed)) for seed in range(40)]
    assert sum(each.arena_bytes for each in sizes) <= 1.05 * sum(
        each.arena_lower_bound for each in sizes
    )


@st.composite
def buffer_lists(draw: st.DrawFn) -> list[Buffer]:
    count = draw(st.integers(0, 14))
    buffers = []
    for index in range(count):
        first = draw(st.integers(-1, 12))
        size = draw(st.sampled_from([1, 3, 4, 7, 64, 100, 4096]) | st.integers(1, 50))
        buffers.append(Buffer(f"b{index}", size, first, first + draw(st.integers(0, 8))))
    return buffers


def overlapping(buffers: list[Buffer], arena: Arena) -> list[tuple[str, str]]:
    """Return pairs that live at one time and share a byte."""
    found = []
    for one, other in itertools.combinations(buffers, 2):
        first, second = arena.offsets[one.name], arena.offsets[other.name]
        together = any(
            one.first <= at <= one.last and other.first <= at <= other.last for at in range(-1, 22)
        )
        if together and first < second + other.size and second < first + one.size:
            found.append((one.name, other.name))
    return found


@given(buffer_lists())
def test_live_buffers_do_not_overlap(buffers: list[Buffer]) -> None:
    arena = plan_arena(buffers)
    assert overlapping(buffers, arena) == []
    assert all(offset % ALIGNMENT == 0 for offset in arena.offsets.values())
    assert all(arena.offsets[each.name] + each.size <= arena.size for each in buffers)


@given(buffer_lists())
def test_the_bound_is_what_is_alive(buffers: list[Buffer]) -> None:
    arena = plan_arena(buffers)
    alive = [
        sum(-(-each.size // 4) * 4 for each in buffers if each.first <= at <= each.last)
        for at in range(-1, 22)
    ]
    assert arena.lower_bound == max(alive)
    assert arena.lower_bound <= arena.size <= sum(each.room for each in buffers)
    assert arena.size <= 2 * arena.lower_bound


def test_chains_and_branches_waste_nothing() -> None:
    sizes = [100, 400, 200, 800, 52, 1200, 40]
    chain = [Buffer(str(at), size, at, at + 1) for at, size in enumerate(sizes)]
    kept = Buffer("kept", 300, 0, 6)
    for buffers in (chain, [*chain, kept]):
        arena = plan_arena(buffers)
        assert arena.size == arena.lower_bound


def test_a_gap_is_used() -> None:
    buffers = [
        Buffer("low", 8, 0, 9),
        Buffer("early", 16, 0, 3),
        Buffer("high", 12, 2, 9),
        Buffer("late", 16, 5, 9),
    ]
    assert plan_arena(buffers).size == 36


def test_order_of_equals_does_not_matter() -> None:
    assert plan_arena([]) == Arena(0, 0, {})
    buffers = [Buffer(name, 8, 0, 1) for name in "abc"]
    assert plan_arena(buffers) == plan_arena(list(buffers))
