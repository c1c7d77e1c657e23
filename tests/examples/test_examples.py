"""The examples of deployment run as they stand, and do what they say."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import intact
from tests.examples.scripts import EXAMPLES, REPOSITORY, run


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [each for each in packages if importlib.util.find_spec(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def test_index_names_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w.]+)\)", text))
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert files <= linked
    assert all((EXAMPLES / name).is_file() for name in linked)


@needs("openvino", "ai_edge_litert", "ncnn")
def test_one_classifier_has_the_planned_bits_in_four_runtimes(tmp_path: Path) -> None:
    script = str(EXAMPLES / "classifier_four_runtimes.py")
    heading, *rows, of_float = run(tmp_path, script, "--samples", "50").splitlines()
    assert heading.split()[:2] == ["target", "top-1,"]
    figures = {row.split()[0]: row.split()[1:4] for row in rows}
    assert set(figures) == {"onnxruntime", "openvino", "tflite", "ncnn"}
    for top1, values, differ in figures.values():
        assert float(top1) >= float(of_float.split()[1]) - 4
        assert int(values.replace(",", "")) > 100_000
        assert differ == "0"


@needs("rapidocr_onnxruntime", "PIL")
def test_the_text_detector_finds_the_lines_that_were_drawn(tmp_path: Path) -> None:
    text = run(tmp_path, str(EXAMPLES / "text_detector.py"), "--samples", "2")
    for figure in ("recall", "precision"):
        (found,) = re.findall(rf"^{figure} +([\d.]+) +([\d.]+)$", text, re.MULTILINE)
        assert min(map(float, found)) >= 0.75
    assert re.search(r"layers, 0 of [\d,]+ values differ", text)


@needs("magika")
def test_the_text_encoder_keeps_its_answers(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for suffix, files in ((".py", sorted(EXAMPLES.glob("*.py"))), (".md", DOCUMENTS)):
        for number, path in enumerate(files[:8]):
            shutil.copy(path, folder / f"{number}{suffix}")
    script = str(EXAMPLES / "text_encoder.py")
    text = run(tmp_path, script, "--files", str(folder), "--each", "8")
    assert text.startswith("16 files of 2 kinds")
    assert re.search(r"3 of \d+ nodes quantized\): \w+, \w+, \w+$", text, re.MULTILINE)
    top1 = re.search(r"top-1 % +([\d.]+) +([\d.]+)", text)
    assert top1 is not None
    assert min(map(float, top1.groups())) >= 75
    assert re.search(r"layers, 0 of [\d,]+ values differ", text)


DOCUMENTS = sorted((REPOSITORY / "docs").glob("*.md"))


@needs("tflite_micro")
@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a compiler")
def test_the_microcontroller_program_computes_the_planned_codes(tmp_path: Path) -> None:
    text = run(tmp_path, str(EXAMPLES / "microcontroller.py"), "--samples", "50")
    flash, firmware, top1, micro = text.splitlines()
    assert re.match(r"constants: [\d.]+ KiB of flash, activations: [\d.]+ KiB", flash)
    assert firmware == "firmware: 0 of 500 codes differ from the plan's"
    assert float(re.findall(r"([\d.]+) %", top1)[0]) >= 94
    assert micro.endswith(": 0 of 500 codes differ")


def test_the_accelerators_fault_is_found(tmp_path: Path) -> None:
    text = run(tmp_path, str(EXAMPLES / "own_accelerator.py"), "--samples", "20")
    assert "in float: pool/GlobalAveragePool, the array has no divider" in text
    rounds, truncates = text.splitlines()[-2:]
    assert rounds == "the simulation rounds: differing codes 0"
    assert re.fullmatch(r"the simulation truncates: differing codes {'logits': \d+}", truncates)
    with np.load(tmp_path / "out" / "vectors.npz") as vectors:
        assert {vectors[name].dtype for name in vectors} == {np.dtype(np.uint8)}
    assert intact.load_result(tmp_path / "out" / "accelerator").plan.target.name == "edge-mac16"
