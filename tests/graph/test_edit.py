"""Edits of a copy: names, redirected readers, outputs that keep their names."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.graph import normalize
from intact.graph.edit import Editor
from tests.models import ModelBuilder, control_flow, random_inputs, residual_net, run_model


def chain() -> ModelBuilder:
    b = ModelBuilder()
    x = b.node("Relu", b.input("x", ["batch", 4]), out="a", name="first")
    b.node("Add", x, x, out="y", name="second")
    b.output("y")
    b.output("a")
    return b


def run(editor: Editor, x: np.ndarray) -> dict[str, np.ndarray]:
    model = ir.to_proto(editor.finish())
    onnx.checker.check_model(model)
    return run_model(model, {"x": x})


X = np.array([[-1, 0, 1, 2]], np.float32)


def test_the_source_is_not_touched() -> None:
    source = normalize(residual_net()).model
    before = ir.to_proto(source).SerializeToString(deterministic=True)
    editor = Editor(source)
    value = editor.value("image")
    editor.redirect(value, editor.node("Neg", [value], "negative"), [("Conv_conv_3", 0)])
    editor.finish()
    assert ir.to_proto(source).SerializeToString(deterministic=True) == before


def test_only_the_named_slot_reads_the_new_value() -> None:
    editor = Editor(normalize(chain().build()).model)
    value = editor.value("a")
    editor.redirect(value, editor.node("Neg", [value], "n"), [("second", 1)])
    found = run(editor, X)
    np.testing.assert_array_equal(found["y"], np.zeros((1, 4)))
    np.testing.assert_array_equal(found["a"], np.maximum(X, 0))


def test_an_output_keeps_its_name_and_place() -> None:
    editor = Editor(normalize(chain().build()).model)
    old = editor.value("a")
    new = editor.node("Neg", [old], "n")
    editor.replace_output(old, new)
    assert [str(value.name) for value in editor.model.graph.outputs] == ["y", "a"]
    assert (editor.value("a"), editor.value("a_float")) == (new, old)
    found = run(editor, X)
    np.testing.assert_array_equal(found["a"], -np.maximum(X, 0))
    np.testing.assert_array_equal(found["y"], 2 * np.maximum(X, 0))


def test_what_is_no_output_is_left_alone() -> None:
    editor = Editor(normalize(residual_net()).model)
    value = editor.value("image")
    editor.replace_output(value, editor.node("Neg", [value], "n"))
    assert value.name == "image"


@pytest.mark.parametrize("taken", ["a", "first", "x", "second"])
def test_names_of_nodes_and_values_are_not_given_twice(taken: str) -> None:
    editor = Editor(normalize(chain().build()).model)
    given = [
        editor.input(taken, ir.DataType.FLOAT, []).name,
        editor.initializer(taken, ir.tensor(np.float32(1))).name,
        editor.node("Neg", [editor.value("x")], taken).name,
    ]
    assert given == [f"{taken}_2", f"{taken}_3", f"{taken}_4"]


def test_names_inside_bodies_are_taken() -> None:
    editor = Editor(normalize(control_flow()).model)
    assert editor.names.fresh("then_branch_out") == "then_branch_out_2"


def test_later_readers_get_what_was_bound() -> None:
    editor = Editor(normalize(chain().build()).model)
    new = editor.node("Neg", [editor.value("x")], "n")
    editor.rebind("x", new)
    assert editor.value("x") is new


def test_unread_constants_go() -> None:
    editor = Editor(normalize(residual_net()).model)
    before = set(editor.model.graph.initializers)
    editor.initializer("unread", ir.tensor(np.float32(1)))
    assert set(editor.finish().graph.initializers) == before


def test_nothing_done_changes_nothing() -> None:
    model, feeds = residual_net(), random_inputs(residual_net())
    edited = ir.to_proto(Editor(normalize(model).model).finish())
    found = run_model(edited, feeds)["logits"]
    np.testing.assert_allclose(found, run_model(model, feeds)["logits"], rtol=1e-4, atol=1e-5)
