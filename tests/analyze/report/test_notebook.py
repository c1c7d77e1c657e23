"""What notebooks show of results: a summary, and a report in a frame of its own."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import intact
from intact.engines.latency import Latency
from intact.errors import MissingExtraError
from intact.results.result import Result
from tests.reports import EVIL, evil_model, samples

LEFT_OUT = ["accuracy", "verification", "diagnosis"]


@pytest.fixture(scope="module")
def result() -> Result:
    return intact.quantize(
        evil_model(), samples(), keep_float=["GlobalAveragePool"], weight_bits=4, preset="fast"
    )


def shown(value: Any) -> str:
    text = value._repr_html_()
    assert isinstance(text, str)
    return text


def test_results_show_their_summary(result: Result) -> None:
    text = shown(result)
    assert "onnxruntime" in text
    assert "4 of 6" in re.sub("<[^>]*>", "", text)
    assert "IPython" not in sys.modules


def test_what_public_functions_return_is_shown(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = Latency((1.0, 1.0), 1.0, (1, 1))
    monkeypatch.setattr("intact.analyze.evaluation.evaluate.latencies", lambda *_: once)
    evaluation = intact.evaluate(result, samples())
    found = [
        evaluation,
        intact.verify(result, samples()),
        intact.diagnose(result, samples()),
        intact.compare([result, result], errors=False),
    ]
    for each in found:
        text = shown(each)
        assert text.startswith("<div><b>")
        assert "<table>" in text
        assert "<script" not in text  # the model has a node called like one
    assert evaluation.figures().rows[0][1] in shown(evaluation)


def test_names_are_text(result: Result) -> None:
    assert EVIL in {str(node.name) for node in result.plan.graph.nodes}
    other = intact.quantize(evil_model(), samples(), keep_float=[EVIL], preset="fast")
    text = shown(intact.compare([result, other], errors=False))
    assert html.escape(EVIL) in text
    assert EVIL not in text


def test_the_report_is_framed_apart_from_the_notebook(result: Result, tmp_path: Path) -> None:
    page = result.report(leave_out=LEFT_OUT)
    assert repr(page).startswith("ReportPage(")
    text = shown(page)
    frame = re.fullmatch(r'<iframe sandbox="allow-scripts" [^>]*srcdoc="([^"]*)"></iframe>', text)
    assert frame is not None
    assert html.unescape(frame[1]).encode() == page.page
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == page.page


def test_a_result_in_a_folder_keeps_its_report(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "out")
    page = Result.load(tmp_path / "out").report(samples(), leave_out=LEFT_OUT)
    assert (tmp_path / "out" / "report.html").read_bytes() == page.page
    assert Result.load(tmp_path / "out").folder == tmp_path / "out"


def test_without_the_extra_there_is_a_summary_and_a_command(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fast_sugiyama", None)
    assert "onnxruntime" in shown(result)
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[report\]"'):
        result.report()
