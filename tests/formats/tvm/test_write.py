"""Relax modules as text: one operation a line, names that Python takes, the same bytes always."""

from __future__ import annotations

import ast
import io
import keyword
from pathlib import Path

import numpy as np
import pytest

from intact.errors import ExportError
from intact.formats.base.format import Io, WrittenFiles
from intact.formats.tvm.format import TVM, TVM_FILES
from intact.formats.tvm.write import ScriptBuilder, TvmModule, number_text, write_tvm
from intact.program.realize import Value, integer_program
from tests.models import ModelBuilder
from tests.plans import calibrate, planned
from tests.program.realize.networks import images, network, plan_for

TEXT, ARRAYS = TVM_FILES


def module_of(target: str) -> TvmModule:
    return write_tvm(integer_program(plan_for(target)))


def main_of(text: str) -> ast.FunctionDef:
    (module,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    (main,) = (node for node in module.body if isinstance(node, ast.FunctionDef))
    return main


def test_a_module_takes_one_sample_and_its_arrays() -> None:
    module = module_of("integer-pow2")
    main = main_of(module.text)
    assert main.name == "main"
    assert [argument.arg for argument in main.args.args] == ["image", *module.arrays]
    assert 'image: R.Tensor((1, 3, 8, 8), "int8")' in module.text
    assert '"num_input": 1' in module.text
    assert {str(array.dtype) for array in module.arrays.values()} == {"int8", "int32"}


def test_hardware_that_shifts_gets_shifts_and_no_products_of_64_bits() -> None:
    text = module_of("integer-pow2").text
    assert "R.right_shift" in text
    assert "int64" not in text
    assert "float" not in text
    assert "int64" in module_of("tvm").text


def test_every_name_is_pythons_and_made_once() -> None:
    main = main_of(module_of("tvm").text)
    block = next(node for node in main.body if isinstance(node, ast.With))
    made = [
        target.id
        for line in block.body
        if isinstance(line, ast.Assign)
        for target in line.targets
        if isinstance(target, ast.Name)
    ]
    made += [argument.arg for argument in main.args.args]
    assert len(made) == len(set(made)) > 20
    assert not any(keyword.iskeyword(name) for name in made)


@pytest.mark.parametrize("name", ["class", "a/b c", "ü", "0", "R", "main", "a\nb = c", "match"])
def test_odd_names(name: str) -> None:
    builder = ScriptBuilder()
    declared = builder.input(Value(name, np.dtype(np.int8), (1,), -128, 127))
    said = declared.split(":")[0]
    assert said.isidentifier()
    assert said.isascii()
    assert said not in {"class", "R", "main", "match"}
    assert "\n" not in declared


def test_a_model_with_odd_names_is_written() -> None:
    plan = calibrate(planned(network(image="a/b c"), "integer-pow2"), images(8, image="a/b c"))
    module = write_tvm(integer_program(plan))
    assert module.inputs == ("a/b c",)
    assert main_of(module.text).args.args[0].arg == "a_b_c"


@pytest.mark.parametrize("number", [0.1, 1e-7, 3.4e38, -2.5])
def test_floats_read_back_to_the_bit(number: float) -> None:
    told = number_text(np.asarray(number, np.float32))
    call = ast.parse(told, mode="eval").body
    assert isinstance(call, ast.Call)
    assert np.float32(ast.literal_eval(call.args[0])) == np.float32(number)


def test_the_same_plan_gives_the_same_bytes() -> None:
    plan = calibrate(planned(network(), "tvm"), images(32, seed=1))
    first, second = TVM.writer.write(plan, Io.INT8), TVM.writer.write(plan_for("tvm"), Io.INT8)
    assert isinstance(first, WrittenFiles)
    assert isinstance(second, WrittenFiles)
    assert first.files == second.files


def test_files_are_written_and_read(tmp_path: Path) -> None:
    plan = plan_for("tvm")
    exported = TVM.writer.write(plan, Io.INT8)
    exported.save(tmp_path)
    read = TVM.writer.read(tmp_path, plan)
    assert isinstance(read, WrittenFiles)
    assert read.files.keys() == {TEXT, ARRAYS}
    arrays = np.load(io.BytesIO(read.files[ARRAYS]), allow_pickle=False)
    for name, array in module_of("tvm").arrays.items():
        np.testing.assert_array_equal(arrays[name], array)
    assert "BindParams" in exported.notes[0].message


def test_all_that_floats_compute_is_listed() -> None:
    with pytest.raises(ExportError, match=r"'stem'.*'dense'.*float32"):
        TVM.writer.write(plan_for("onnxruntime"), Io.INT8)


def test_open_lengths_beside_the_batch_are_refused() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("image", ["batch", 3, "height", "width"]), b.weight(4, 3, 3, 3))
    y = b.node("MatMul", b.input("text", ["batch", "length", 3]), b.weight(3, 4))
    b.output(x)
    b.output(y)
    feeds = images(8) | {"text": np.ones((8, 5, 3), np.float32)}
    plan = calibrate(planned(b.build(), "tvm"), feeds)
    with pytest.raises(ExportError, match=r"'image'.*\[2, 3\].*'text'.*\[1\].*fix all axes"):
        TVM.writer.write(plan, Io.INT8)
