"""Formats, the engine and verification from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import intact
from intact.cli import run
from tests.models import ModelBuilder


def quantized(say: Any, *options: str, output: str = "out") -> str:
    found: str = say("quantize", "model.onnx", "-d", "calib.npz", "-o", output, *options)
    return found


def test_two_formats_of_one_result(here: Path, say: Any, fails: Any) -> None:
    made = json.loads(
        quantized(say, "--target", "tflite-micro", "--format", "tflite", "--format", "c", "--json")
    )
    assert made["formats"] == ["tflite", "c"]
    names = {path.name for path in Path("out").iterdir()}
    assert {"model.int8.tflite", "model.c", "model.h", "model_data.h"} <= names
    assert "model.int8.onnx" not in names
    for options in ((), ("--kernels", "ref"), ("--format", "c")):
        found = json.loads(say("verify", "out", "--samples", "6", "--json", *options))["verified"][
            0
        ]
        assert [each["mismatches"] for each in found["outputs"]] == [0]
        assert (found["samples"], found["target"]) == (6, "tflite-micro")
    assert "the result has tflite, c" in fails("verify", "out", "--format", "onnx_qdq")
    assert "--kernels is for a .tflite" in fails(
        "verify", "out", "--format", "c", "--kernels", "ref"
    )
    assert "micro" in fails("verify", "out", "--kernels", "fast")
    evaluated = json.loads(say("evaluate", "out", "-d", "test.npz", "--json"))
    assert evaluated["latency_ms"] is None
    assert evaluated["runtime"] == "integer engine for tflite-micro"
    assert "integer engine" in say("evaluate", "out", "-d", "test.npz")


@pytest.mark.parametrize("io", ["int8", "float"])
def test_what_the_ends_of_a_file_hold(here: Path, say: Any, io: str) -> None:
    quantized(say, "--target", "tflite", "--io", io)
    found = json.loads(say("verify", "out", "--samples", "8", "--json"))["verified"][0]
    assert sum(layer["mismatches"] for layer in found["layers"]) == 0
    assert found["outputs"][0]["mismatches"] == 0
    nodes = intact.inspect("out/model.int8.tflite").nodes
    assert {row.op_type for row in nodes} >= {"Conv", "Gemm"}


def test_other_kernels_give_other_bits_and_are_named(here: Path, say: Any) -> None:
    quantized(say, "--target", "tflite")
    text = say("verify", "out", "--kernels", "optimized")
    assert "optimized kernels" in text
    found = json.loads(say("verify", "out", "--kernels", "optimized", "--json"))["verified"][0]
    assert sum(layer["mismatches"] for layer in found["layers"]) > 0
    worst = max(found["layers"], key=lambda layer: layer["mismatches"])
    assert worst["end"] in text


def test_wrong_formats_and_ends(here: Path, fails: Any) -> None:
    given = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out")
    assert "did you mean 'tflite'" in fails(*given, "--format", "tflit")
    assert "int8 or float" in fails(*given, "--target", "tflite", "--io", "int4")
    assert "LayerNormalization" in fails(*given, "--expand", "LayerNorm")
    assert not Path("out").exists()


def test_what_a_format_cannot_hold_leaves_nothing(here: Path, fails: Any) -> None:
    given = ("quantize", "model.onnx", "-d", "calib.npz", "-o", "out", "--format", "c")
    message = fails(*given, "--target", "tflite-micro", "--keep-float", "Gemm")
    assert "C cannot hold" in message
    assert not Path("out").exists()


def test_recorded_tensors(here: Path, say: Any, fails: Any) -> None:
    quantized(say, "--target", "tflite")
    images = np.load("test.npz")["image"][:5].astype(np.float32)
    np.savez("x.npz", image=images)
    seen = intact.execute("out", "x.npz", observe=None, threads=1).tensors
    name = next(n for n, a in seen.items() if a.ndim == 4 and a.dtype == np.int8 and n != "image")
    wrong = seen[name].copy()
    wrong[2, 1, 0, 0] += 3
    np.savez("dump.npz", **{name: wrong})  # type: ignore[arg-type]
    given = ("verify", "out", "--data", "x.npz", "--observed", "dump.npz")
    found = json.loads(say(*given, "--json"))["verified"][0]
    (layer,) = found["layers"]
    assert found["ends_compared"] == 1
    assert found["ends"] == 1 + len(found["not_compared"]) > 2
    text = say(*given)
    assert f"1 of {found['ends']}" in text
    assert f"not compared {found['ends'] - 1} tensors" in text
    assert (layer["mismatches"], layer["largest"], layer["values"]) == (1, 3, wrong.size)
    np.savez("dump.npz", **{f"{name}x": wrong})  # type: ignore[arg-type]
    assert name in fails(*given)
    assert "--data" in fails("verify", "out", "--observed", "dump.npz")
    assert "nowhere.npz: no such file; check --observed" in fails(*given[:-1], "nowhere.npz")
    np.save("dump.npy", wrong)
    assert "keyed by tensor name" in fails(*given[:-1], "dump.npy")
    assert "--target is for a .tflite" in fails("verify", "out", "--target", "tflite")


def test_a_damaged_tflite_is_one_line(here: Path, say: Any, fails: Any) -> None:
    quantized(say, "--target", "tflite")
    content = Path("out/model.int8.tflite").read_bytes()
    Path("half.tflite").write_bytes(content[: len(content) // 2])
    for command in (("inspect", "half.tflite"), ("verify", "half.tflite")):
        assert "half.tflite" in fails(*command)
    assert "half.tflite" in fails("run", "half.tflite", "-d", "test.npz", "-o", "y.npz")
    assert "half.tflite" in fails("import", "half.tflite", "-o", "read")
    Path("out/model.int8.tflite").write_bytes(content[:100])
    assert fails("verify", "out")


def test_a_read_file_is_written_again(here: Path, say: Any) -> None:
    quantized(say, "--target", "tflite")
    shutil.copy("out/model.int8.tflite", "model.tflite")
    formats = ("--format", "tflite", "--format", "c")
    say("import", "model.tflite", "-o", "read", "--target", "tflite-micro", *formats)
    codes = np.random.default_rng(0).integers(-128, 128, (4, 8, 8, 1)).astype(np.int8)
    first, again, c = (
        intact.execute(path, codes, threads=1).outputs
        for path in ("model.tflite", "read/model.int8.tflite", "read")
    )
    (wanted,) = first.values()
    assert wanted.dtype == np.int8
    for other in (again, c):
        (array,) = other.values()
        np.testing.assert_array_equal(array, wanted)
    found = json.loads(say("verify", "read", "--format", "c", "--samples", "4", "--json"))[
        "verified"
    ][0]
    assert found["outputs"][0]["mismatches"] == 0


def test_a_long_list_of_what_cannot_be_written_is_counted_by_reason(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    b = ModelBuilder(13)
    x = b.input("image", ["batch", 2, 4, 4])
    for number in range(40):
        x = b.node("Hardmax", b.conv(x, 2, 2), name=f"hardmax_with_a_long_name_{number}")
    b.node("Relu", x, out="y")
    b.output("y")
    onnx.save(b.build(), "odd.onnx")
    np.savez("x.npz", image=np.random.default_rng(0).random((4, 2, 4, 4), np.float32))
    given = ("quantize", "odd.onnx", "-d", "x.npz", "-o", "out", "--target", "tflite")
    assert run(given) == 1
    error = capfd.readouterr().err
    assert error.splitlines()[-1].startswith("intact: TFLite cannot hold")
    names = ", ".join(f"'hardmax_with_a_long_name_{number}'" for number in range(3))
    assert f"40 places ({names}, ...): " in error
    assert not Path("out").exists()


def padded_model(path: Path) -> None:
    """Write two convolutions; the pads of the second are neither SAME nor VALID."""
    draw = np.random.default_rng(0).standard_normal
    first, second = (draw(shape).astype(np.float32) for shape in ((2, 1, 1, 1), (4, 2, 3, 3)))
    nodes = [
        helper.make_node("Conv", ["image0", "v"], ["image"], name="first"),
        helper.make_node("Conv", ["image", "w"], ["y"], name="conv", pads=[2, 1, 1, 2]),
    ]
    inputs = [helper.make_tensor_value_info("image0", TensorProto.FLOAT, ["n", 1, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 9, 9])]
    initial = [numpy_helper.from_array(first, "v"), numpy_helper.from_array(second, "w")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initial)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def test_every_tensor_of_the_file_recorded_by_hand(here: Path, say: Any) -> None:
    """More samples than are verified unasked, and the tensors that only the file has."""
    pytest.importorskip("ai_edge_litert")
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    padded_model(Path("padded.onnx"))
    images = np.random.default_rng(1).standard_normal((70, 1, 8, 8)).astype(np.float32)
    np.savez("x.npz", image0=images)
    say("quantize", "padded.onnx", "-d", "x.npz", "-o", "out", "--target", "tflite")
    interpreter = Interpreter(
        "out/model.int8.tflite",
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=True,
    )
    (taken,) = interpreter.get_input_details()
    scale, zero_point = taken["quantization"]
    codes = np.clip(np.rint(images / np.float32(scale)) + zero_point, -128, 127).astype(np.int8)
    interpreter.resize_tensor_input(taken["index"], [70, 8, 8, 1])
    interpreter.allocate_tensors()
    interpreter.set_tensor(taken["index"], codes.transpose(0, 2, 3, 1))
    interpreter.invoke()
    dump = {
        each["name"]: interpreter.get_tensor(each["index"])
        for each in interpreter.get_tensor_details()
        if len(each["shape"]) == 4 and interpreter.get_tensor(each["index"]).shape[0] == 70
    }
    assert "image_padded" in dump
    np.savez("dump.npz", **dump)
    given = ("verify", "out", "--data", "x.npz", "--observed", "dump.npz")
    found = json.loads(say(*given, "--json"))["verified"][0]
    assert found["samples"] == 70
    assert len(found["layers"]) == len(dump) - 1
    assert sum(layer["mismatches"] for layer in found["layers"]) == 0
    assert found["not_compared"] == {"image_padded": "only the file has it, the plan does not"}
    text = say(*given)
    assert text.count("recorded channels last") == 1
    dump["y"] = dump["y"] ^ 1
    np.savez("dump.npz", **dump)
    assert "y, conv.output[0]" in say(*given)


def test_what_run_will_not_write(here: Path, say: Any, fails: Any) -> None:
    quantized(say, "--target", "tflite")
    Path("main.c").write_text("int main(void) { return 0; }")
    given = ("run", "out", "-d", "test.npz", "-o")
    assert "ends in .npz" in fails(*given, "main.c")
    assert Path("main.c").read_text().startswith("int main")
    assert "there is no folder missing" in fails(*given, "missing/y.npz")
    assert not Path("missing").exists()


def test_what_verify_will_not_take(here: Path, say: Any, fails: Any) -> None:
    assert "is a file" in fails("verify", "model.onnx")
    for name in ("nowhere", "nowhere.tflite"):
        assert f"{name} does not exist" in fails("verify", name)
    quantized(say, "--target", "tflite")
    shutil.copy("out/model.int8.tflite", "model.lite")
    assert (
        json.loads(say("verify", "model.lite", "--samples", "2", "--json"))["verified"][0][
            "samples"
        ]
        == 2
    )


@pytest.mark.parametrize("size", [0, 100, 3000])
def test_a_damaged_tflite_of_a_result(here: Path, say: Any, fails: Any, size: int) -> None:
    """TensorFlow Lite Micro would read beyond its end."""
    quantized(say, "--target", "tflite-micro")
    path = Path("out/model.int8.tflite")
    path.write_bytes(path.read_bytes()[:size])
    for options in ((), ("--kernels", "ref")):
        message = fails("verify", "out", *options)
        assert f"{path}: " in message
        assert "damaged" in message


def test_the_tflite_of_another_result(here: Path, say: Any, fails: Any) -> None:
    padded_model(Path("padded.onnx"))
    np.savez("x.npz", image0=np.ones((4, 1, 8, 8), np.float32))
    say("quantize", "padded.onnx", "-d", "x.npz", "-o", "other", "--target", "tflite")
    quantized(say, "--target", "tflite-micro")
    shutil.copy("other/model.int8.tflite", "out/model.int8.tflite")
    assert "not the model of this plan, its inputs are ['image0']" in fails("verify", "out")


@pytest.mark.parametrize("added", [b"\n", b"\xff"])
def test_c_of_strangers_is_not_run(here: Path, say: Any, fails: Any, added: bytes) -> None:
    quantized(say, "--target", "tflite-micro", "--format", "c")
    path = Path("out/model.c")
    path.write_bytes(path.read_bytes() + added)
    assert "model.c is not what this plan gives" in fails("verify", "out")


def test_c_takes_codes_whatever_is_asked_for(here: Path, say: Any) -> None:
    text = quantized(say, "--target", "tflite-micro", "--format", "c", "--io", "float")
    assert "--io float is for a .tflite" in text


def test_a_float_file_in_tensorflow_lite_micro(here: Path, say: Any, fails: Any) -> None:
    quantized(say, "--target", "tflite-micro", "--format", "tflite", "--io", "float")
    assert "take --kernels ref" in fails("verify", "out")
    found = json.loads(say("verify", "out", "--samples", "4", "--kernels", "ref", "--json"))[
        "verified"
    ][0]
    assert found["samples"] == 4


def test_a_result_is_written_in_other_formats(here: Path, say: Any, fails: Any) -> None:
    quantized(say, "--target", "tflite-micro", "--format", "onnx_qdq")
    assert "ties" in say("export", "out", "--format", "onnx_qdq", "--output", "same")
    made = json.loads(
        say(
            "export",
            "out/plan.json",
            "--format",
            "tflite",
            "--format",
            "c",
            "-o",
            "other",
            "--json",
        )
    )
    assert made["formats"] == ["tflite", "c"]
    assert [note for note in made["notes"] if "ties" in note["message"]] == []
    for name in ("plan.json", "statistics.npz", "model.c", "model.int8.tflite"):
        assert (Path("other") / name).is_file()
    first, second = (intact.load_result(folder).plan for folder in ("out", "other"))
    assert {e: str(c) for e, c in first.configs.items()} == {
        e: str(c) for e, c in second.configs.items()
    }
    found = json.loads(say("verify", "other", "--samples", "4", "--json"))["verified"][0]
    assert found["outputs"][0]["mismatches"] == 0
    direct = intact.quantize(
        "model.onnx", "calib.npz", target="tflite-micro", formats=["tflite"], output="direct"
    )
    assert direct.folder is not None
    written = Path("direct/model.int8.tflite").read_bytes()
    assert written == Path("other/model.int8.tflite").read_bytes()
    assert "did you mean 'tflite'" in fails("export", "out", "--format", "tflit", "-o", "x")
    assert "name one of them" in fails("export", "direct/..", "-o", "x")
    Path("empty").mkdir()
    assert "no plan.json" in fails("export", "empty", "-o", "x")


def test_ranges_are_converted(say: Any, fails: Any) -> None:
    there = json.loads(say("convert-ranges", "--scale", "0.5", "--zero-point", "-28", "--json"))
    assert (there["low"], there["high"]) == (-50.0, 77.5)
    back = json.loads(say("convert-ranges", "--low", "-50", "--high", "77.5", "--json"))
    assert back == there
    text = say("convert-ranges", "--low", "-1", "--high", "1", "--symmetric", "--narrow")
    assert "zero point 0" in text
    assert "codes -127 to 127" in text
    for low, high, bits in (("-1.28", "1.27", "8"), ("-0.64", "0.63", "7")):
        ends = ("--low", low, "--high", high, "--bits", bits, "--symmetric")
        assert say("convert-ranges", *ends).startswith("scale 0.01, zero point 0")
    assert "--low and --high" in fails("convert-ranges", "--low", "1")
    one_sided = ("--low", "0", "--high", "2.55", "--unsigned", "--symmetric")
    assert say("convert-ranges", *one_sided).startswith("scale 0.01, zero point 0")
    assert "leave one of them out" in fails(
        "convert-ranges", "--scale", "1", "--zero-point", "3", "--symmetric"
    )


def test_scales_alone_cannot_be_run(here: Path, say: Any, fails: Any) -> None:
    quantized(say, "--format", "encodings")
    assert Path("out/model.encodings").is_file()
    assert "no program" in fails("verify", "out")
    assert (
        json.loads(say("evaluate", "out", "-d", "test.npz", "--json"))["accuracy"]["top1"][1] > 90
    )
    say("quantize", "model.onnx", "--scales", "out/model.encodings", "-o", "again")
    assert json.loads(say("verify", "again", "--samples", "4", "--json"))["verified"][0]["outputs"]
