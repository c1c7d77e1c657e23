"""Files for Tengine, read back beside their plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact.formats.base.format import Io, WrittenFiles
from intact.formats.base.report import Verification
from intact.formats.tengine.format import MODEL_FILE, TENGINE, plan_of_tmfile
from intact.formats.tengine.verify import verify_tengine
from intact.plan import NoteKind, QuantizedGraph, quantization_points
from intact.targets import load_target
from intact.targets.schema import without_in_place
from tests.models import ModelBuilder, depthwise_net, random_inputs, residual_net
from tests.plans import calibrated, files_of


def written(plan: QuantizedGraph) -> dict[str, bytes]:
    exported = TENGINE.writer.write(plan, Io.INT8)
    assert isinstance(exported, WrittenFiles)
    return dict(exported.files)


def verified(
    model: onnx.ModelProto, plan: QuantizedGraph, files: Mapping[str, bytes], batch: int = 6
) -> Verification:
    content = files.get(MODEL_FILE)
    read_back = None if content is None else plan_of_tmfile(content, plan.target)
    feeds = random_inputs(model, batch=batch, seed=8)
    return verify_tengine(plan, files, read_back, [feeds, feeds], threads=1)


@pytest.mark.parametrize("target", ["tengine", "tengine-u8", "apart"])
@pytest.mark.parametrize("make", [residual_net, depthwise_net])
def test_what_is_written_computes_the_plan(make: object, target: str) -> None:
    assert callable(make)
    model = make()
    described = load_target("tengine" if target == "apart" else target)
    if target == "apart":
        described = without_in_place(described)
    plan = calibrated(model, described)
    found = verified(model, plan, written(plan))
    assert found.samples == 12
    assert len(found.layers) >= 5
    assert all(layer.values and not layer.mismatches for layer in found.layers)
    assert all(layer.values and not layer.mismatches for layer in found.end_to_end)
    assert [output.mismatches for output in found.outputs] == [0]
    assert len(found.rules) == 3
    assert not any(found.rules.values())
    assert found.agreement == 100.0


def test_another_integer_is_found_in_its_layer() -> None:
    model = residual_net()
    plan = calibrated(model, "tengine")
    files = written(plan)
    point = next(p for p in quantization_points(plan) if p.is_constant and p.config.bits == 8)
    codes = point.constant_codes().astype(np.int8).tobytes()
    at = files[MODEL_FILE].index(codes)
    changed = bytearray(files[MODEL_FILE])
    changed[at] = (changed[at] + 64) % 256 if changed[at] + 64 != 128 else 1
    found = verified(model, plan, {**files, MODEL_FILE: bytes(changed)})
    first, *others = (layer for layer in found.layers if "Convolution" in layer.operation)
    assert first.mismatches
    assert not any(layer.mismatches for layer in others)  # each is fed what the file gives


def test_another_line_is_named() -> None:
    model = residual_net()
    plan = calibrated(model, "tengine")
    files = written(plan)
    lines = files["table_minmax.scale"].split(b"\n")
    lines[1] = b"image 0.5 0"
    rules = verified(model, plan, {**files, "table_minmax.scale": b"\n".join(lines)}).rules
    broken = {rule: places for rule, places in rules.items() if places}
    assert list(broken) == ["table_minmax.scale holds the plan's scales"]
    assert "image 0.5 0" in next(iter(broken.values()))
    missing = {name: text for name, text in files.items() if name != "scale_bias.txt"}
    assert any(verified(model, plan, missing).rules["scale_bias.txt holds the plan's scales"])


def test_tables_alone() -> None:
    b = ModelBuilder()
    x = b.node("Tanh", b.conv(b.input("image", ["batch", 2, 4, 4]), 2, 2), name="tanh")
    b.node("Relu", b.conv(x, 2, 2), out="y", name="relu")
    b.output("y")
    model = b.build()
    plan = calibrated(model, "tengine")
    found = verified(model, plan, written(plan))
    assert (found.samples, found.layers) == (0, [])
    assert not any(found.rules.values())


# ---- reading what was written --------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("target", ["tengine", "tengine-u8"])
@pytest.mark.parametrize("make", [residual_net, depthwise_net])
def test_an_own_file_with_other_samples_keeps_its_codes(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], target: str, in_place: bool
) -> None:
    model = make()
    feeds, others = random_inputs(model, batch=8), random_inputs(model, batch=9, seed=4)
    first = intact.quantize(model, feeds, target=target, in_place=in_place)
    first.save(tmp_path)
    wanted = files_of(first, "tengine")[MODEL_FILE]
    for data in (None, others):
        read = intact.read_quantized(tmp_path / MODEL_FILE, data)
        assert files_of(read, "tengine")[MODEL_FILE] == wanted
        assert not [note for note in read.plan.notes if note.kind is not NoteKind.CALIBRATION]
        # No scale gives way, and none is noted to be another than the file's.
        assert not [note for note in read.plan.notes if "give way" in note.message]
