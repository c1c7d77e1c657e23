"""One calibration for several targets, and one table for all that was deployed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intact
from intact import api, demo
from intact.calibrate.collect import collect
from intact.cli import show_verification
from intact.cli.entry import run
from intact.engines.cpu import detect_cpu
from intact.errors import DataError, ExportError, OutputError, UsageError
from intact.formats.base.comparison import OutputComparer
from intact.formats.base.report import Verification
from intact.formats.registry import FORMATS
from intact.graph import Graph
from intact.recipe.file import RECIPE
from intact.targets import load_target
from tests.models import MODELS

TARGETS = ("onnxruntime", "tflite", "integer-pow2")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_each_result_is_what_its_target_alone_gives(tmp_path: Path) -> None:
    model, data = demo.model_path(), demo.calibration_path()
    together = api.quantize_for(model, data, targets=TARGETS, samples=40, output=tmp_path / "all")
    assert tuple(together) == TARGETS
    for name in TARGETS:
        api.quantize(model, data, target=name, samples=40, output=tmp_path / name)
        assert files(tmp_path / "all" / name) == files(tmp_path / name)


def test_a_folder_of_several_is_written_whole_and_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data, folder = demo.model_path(), demo.calibration_path(), tmp_path / "out"
    api.quantize(model, data, samples=8, output=folder)
    api.quantize_for(model, data, targets=TARGETS[:2], samples=8, output=folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*TARGETS[:2], RECIPE])
    before = files(folder / TARGETS[0])

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("intact.results.result.save_plan", fail)
        with pytest.raises(OutputError, match="No space"):
            api.quantize_for(model, data, targets=TARGETS, samples=9, output=folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*TARGETS[:2], RECIPE])
    assert files(folder / TARGETS[0]) == before
    api.quantize_for(model, data, targets=TARGETS[1:], samples=8, output=folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*TARGETS[1:], RECIPE])
    api.quantize(model, data, samples=8, output=folder)
    assert (folder / "plan.json").is_file()
    assert not (folder / TARGETS[1]).exists()
    (folder / "mine").mkdir()
    for targets in (TARGETS[:1], TARGETS):
        with pytest.raises(OutputError, match="'mine'"):
            api.quantize_for(model, data, targets=targets, samples=8, output=folder)


def test_a_damaged_result_takes_one_row_only(tmp_path: Path) -> None:
    model, data = demo.model_path(), demo.calibration_path()
    api.quantize_for(model, data, targets=TARGETS, samples=8, output=tmp_path)
    (tmp_path / "tflite" / "plan.json").write_text('{"format": "intact-plan"')
    found = api.verify_all(tmp_path, samples=4)
    assert {each.target: bool(each.refused) for each in found} == {
        "tflite": True,
        "integer-pow2": False,
        "onnxruntime": False,
    }
    with pytest.raises(intact.IntactError, match="name one of them"):
        api.evaluate(tmp_path, data)
    with pytest.raises(intact.IntactError, match="name one of them"):
        api.inspect(tmp_path)


def test_a_result_is_not_exported_onto_itself(tmp_path: Path) -> None:
    api.quantize(demo.model_path(), demo.calibration_path(), samples=8, output=tmp_path / "out")
    before = files(tmp_path / "out")
    with pytest.raises(UsageError, match="is the result itself"):
        api.export(tmp_path / "out", formats=["tflite"], output=tmp_path / "out")
    assert files(tmp_path / "out") == before


def test_ends_that_a_format_has_no_choice_of_are_refused() -> None:
    with pytest.raises(UsageError, match="io float does nothing for openvino"):
        api.quantize(demo.model_path(), demo.calibration_path(), target="openvino", io="float")


def test_the_samples_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[tuple[str, ...]] = []

    def counted(graph: Any, samples: Any, names: tuple[str, ...], **options: Any) -> Any:
        passes.append(names)
        return collect(graph, samples, names, **options)

    monkeypatch.setattr("intact.flow.calibration.collect", counted)
    images = (image for image in np.load(demo.calibration_path())["image"][:8])
    batches = ({"image": image[None].astype(np.float32)} for image in images)
    found = api.quantize_for(demo.model_path(), batches, targets=TARGETS)
    assert len(passes) == 1
    assert len(set(passes[0])) == len(passes[0])
    for result in found.values():
        assert result.statistics is not None
        assert all(seen.samples == 8 for seen in result.statistics.tensors.values())


def test_a_target_without_a_name_for_a_folder_is_refused(tmp_path: Path) -> None:
    model, data = demo.model_path(), demo.calibration_path()
    source = (Path(api.__file__).parents[1] / "targets" / "tflite.toml").read_text()
    strange = tmp_path / "strange.toml"
    for name in ("../outside", "", ".hidden", "a/b"):
        strange.write_text(source.replace('name = "tflite"', f'name = "{name}"', 1))
        with pytest.raises(intact.IntactError):
            api.quantize_for(model, data, targets=[strange], output=tmp_path / "out")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "out").exists()


def test_mistakes_are_found_before_anything_is_written(tmp_path: Path) -> None:
    model, data = demo.model_path(), demo.calibration_path()
    with pytest.raises(UsageError, match="tflite is given twice"):
        api.quantize_for(model, data, targets=["tflite", "tflite"], output=tmp_path / "out")
    with pytest.raises(UsageError, match="no target"):
        api.quantize_for(model, data, targets=[])
    foreign = tmp_path / "out" / "tflite"
    foreign.mkdir(parents=True)
    (foreign / "letter.txt").write_text("mine")
    with pytest.raises(OutputError, match=r".tflite."):
        api.quantize_for(model, data, targets=TARGETS, output=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tflite"]


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let TFLite hold nothing."""

    def refuse(*_: Any) -> Any:
        raise ExportError("TFLite cannot hold it", remedy="leave it out with --keep-float x")

    monkeypatch.setattr(FORMATS["tflite"].writer, "write", refuse)


def several(*targets: str) -> list[str]:
    named = (part for target in targets for part in ("--target", target))
    data = ("--data", str(demo.calibration_path()), "--samples", "8")
    return ["quantize", str(demo.model_path()), *data, *named]


def test_a_target_that_refuses_does_not_discard_the_others(
    tmp_path: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    line = [*several("tflite", "onnxruntime"), "--output", str(folder)]
    assert run(line) == 0
    capfd.readouterr()
    request.getfixturevalue("refusing")
    assert run(line) == 1
    said = capfd.readouterr()
    reason = "TFLite cannot hold it; leave it out with --keep-float x"
    assert f"not written for tflite: {reason}" in said.out
    assert "1 of 2 targets" in said.out
    assert not said.err
    # What an earlier run wrote for it does not stand beside the new results.
    assert sorted(path.name for path in folder.iterdir()) == ["onnxruntime", RECIPE]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert run([*line, "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert list(found["results"]) == ["onnxruntime"]
    assert found["refused"] == {"tflite": reason}


def test_nothing_is_written_where_all_refuse(
    tmp_path: Path, refusing: None, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data, folder = demo.model_path(), demo.calibration_path(), tmp_path / "out"
    found = api.quantize_for(
        model, data, targets=["tflite", "onnxruntime"], samples=8, output=folder
    )
    assert list(found) == ["onnxruntime"]
    assert isinstance(found.refused["tflite"], ExportError)
    before = files(folder / "onnxruntime")
    assert run([*several("tflite"), "--output", str(folder)]) == 1
    assert run([*several("tflite", "tflite-micro"), "--output", str(folder)]) == 1
    assert "TFLite cannot hold it" in capfd.readouterr().err
    assert files(folder / "onnxruntime") == before


def test_what_is_wrong_with_one_result_does_not_hide_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = demo.model_path(), demo.calibration_path()
    api.quantize_for(model, data, targets=["onnxruntime", "tflite"], samples=8, output=tmp_path)
    line = [str(tmp_path), "--data", str(demo.test_path()), "--samples", "6", "--json"]
    assert run(["evaluate", *line]) == 0
    assert set(json.loads(capfd.readouterr().out)["results"]) == {"onnxruntime", "tflite"}

    def unfit(*_: Any, **__: Any) -> Verification:
        raise DataError("the deployed model gives y, its plan z")

    monkeypatch.setattr("intact.formats.tflite.verify.verify_tflite", unfit)
    assert run(["verify", *line]) == 1
    rows = json.loads(capfd.readouterr().out)["verified"]
    assert {row["target"]: row["refused"] for row in rows} == {
        "onnxruntime": "",
        "tflite": "the deployed model gives y, its plan z",
    }
    (tmp_path / "tflite" / "plan.json").write_text('{"format": "intact-plan"')
    assert run(["evaluate", *line]) == 1
    found = json.loads(capfd.readouterr().out)
    assert list(found["results"]) == ["onnxruntime"]
    assert "plan.json" in found["refused"]["tflite"]
    assert run(["evaluate", *line[:-1]]) == 1
    assert "not evaluated: tflite: " in capfd.readouterr().out
    assert run(["evaluate", str(tmp_path), "--data", str(tmp_path / "none.npz")]) == 1
    assert "none.npz" in capfd.readouterr().err


def test_one_table_for_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = demo.model_path(), demo.calibration_path()
    api.quantize_for(model, data, targets=TARGETS[:2], samples=40, output=tmp_path)
    found = api.verify_all(tmp_path, demo.test_path(), samples=30)
    assert [(each.target, each.format) for each in found] == [
        ("onnxruntime", "onnx_qdq"),
        ("tflite", "tflite"),
    ]
    for each in found:
        assert each.samples == 30
        assert sum(layer.mismatches for layer in each.layers) == 0
        assert each.agreement == 100.0
        assert each.top1 is not None
        assert each.top1[0] == each.top1[1] > 80
    show_verification.verifications(found, as_json=False)
    text = capfd.readouterr().out
    assert "onnxruntime 1." in text.lower() or "ONNX Runtime" in text
    assert "100.00" in text
    show_verification.verifications(found, as_json=True)
    rows = json.loads(capfd.readouterr().out)["verified"]
    assert len(rows[0]["classes"]["deployed"]) == 30

    def refuse(*_: Any, **__: Any) -> Verification:
        raise ExportError("the runtime refuses it", remedy="mend it")

    monkeypatch.setattr("intact.formats.tflite.verify.verify_tflite", refuse)
    first, second = api.verify_all(tmp_path, demo.test_path(), samples=3)
    assert not first.refused
    assert "the runtime refuses it" in second.refused
    show_verification.verifications([first, second], as_json=False)
    assert "not run" in capfd.readouterr().out


def test_decisions_are_counted_end_to_end() -> None:
    found = Verification("t", "r", detect_cpu(), 4, [])
    found.score(np.array([1, 2]))
    assert found.top1 is None
    classes = deployed_classes([[0, 1], [1, 0], [1, 0], [0, 1]], [[0, 1], [0, 1], [1, 0], [0, 1]])
    found = Verification("t", "r", detect_cpu(), 4, [], classes=classes)
    assert found.agreement == 75.0
    found.score(np.array([1, 1, 0]))  # the fourth filled up a batch
    assert found.top1 == pytest.approx((200 / 3, 100.0))
    with pytest.raises(intact.IntactError, match="5 labels for 4"):
        found.score(np.zeros(5, np.int64))


def deployed_classes(given: list[list[int]], expected: list[list[int]]) -> Any:
    outputs = OutputComparer()
    outputs.add("y", np.array(given), np.array(expected))
    outputs.add("z", np.zeros((4, 3)), np.zeros((4, 3)))  # a second output decides nothing
    return outputs.classes()


def test_targets_with_a_gelu_calibrate_a_graph_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_target("tflite").describes("Gelu") != load_target("onnxruntime").describes("Gelu")
    model = MODELS["transformer"].build(17)
    data = {name: array[:4] for name, array in transformer_feeds(model).items()}
    graphs: list[Graph] = []

    def counted(graph: Graph, *arguments: Any, **options: Any) -> Any:
        graphs.append(graph)
        return collect(graph, *arguments, **options)

    monkeypatch.setattr("intact.flow.calibration.collect", counted)
    found = api.quantize_for(model, data, targets=TARGETS, formats=["encodings"])
    assert len(graphs) == 3  # each has other operators that are expanded or joined
    joined = {name: "Gelu" in {n.op_type for n in r.plan.graph.nodes} for name, r in found.items()}
    assert joined == {"onnxruntime": True, "tflite": True, "integer-pow2": False}


def transformer_feeds(model: Any) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    feeds = {}
    for value in model.graph.input:
        sizes = [d.dim_value or 4 for d in value.type.tensor_type.shape.dim]
        feeds[value.name] = rng.normal(size=sizes).astype(np.float32)
    return feeds


@pytest.mark.parametrize("compared", [0, 1])
def test_nothing_compared_is_no_success(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    compared: int,
) -> None:
    found = Verification("t", "r", detect_cpu(), 4, [], ends=96, ends_compared=compared)
    monkeypatch.setattr("intact.api.verify_all", lambda *_, **__: [found])
    assert run(["verify", str(tmp_path)]) == (compared == 0)
    assert ("none of the 96 quantized tensors" in capfd.readouterr().out) == (compared == 0)
