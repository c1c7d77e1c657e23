"""Where tensors lie: views, results in place, outputs at the caller, and nothing trodden on."""

from __future__ import annotations

import numpy as np

from intact.engines.integer import IntegerEngine
from intact.formats.c.files import static_shapes
from intact.formats.c.run import CRuntime
from intact.formats.c.storage import Places, plan_places
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
