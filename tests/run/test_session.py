"""Sessions: what the runtime refuses is one line of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intact.errors import ModelError, UsageError
from intact.graph import normalize, save_model
from intact.run import session
from intact.run.float import FloatModel
from intact.run.session import Optimization, make_session, run_session
from tests.models import custom_domain, odd_names, random_inputs, residual_net, run_model


def test_every_source_gives_the_same_numbers(tmp_path: Path) -> None:
    graph, feeds = normalize(residual_net()), dict(random_inputs(residual_net()))
    save_model(graph.model, tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    results = [
        run_session(make_session(source, threads=1), feeds)[0]
        for source in (graph.model, data, tmp_path / "m.onnx")
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_a_model_too_large_for_one_message_goes_through_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, feeds = normalize(residual_net()), dict(random_inputs(residual_net()))
    expected = run_session(make_session(graph.model, threads=1), feeds)[0]
    monkeypatch.setattr(session, "_LARGEST_MESSAGE", 10)
    np.testing.assert_array_equal(
        run_session(make_session(graph.model, threads=1), feeds)[0], expected
    )


@pytest.mark.parametrize("optimization", Optimization)
def test_levels_agree(optimization: Optimization) -> None:
    graph, feeds = normalize(residual_net()), dict(random_inputs(residual_net()))
    found = run_session(make_session(graph.model, threads=1, optimization=optimization), feeds)
    np.testing.assert_allclose(found[0], run_model(residual_net(), feeds)["logits"], atol=1e-5)


def test_errors_are_one_line() -> None:
    with pytest.raises(ModelError) as refused:
        make_session(normalize(custom_domain()).model)
    session = make_session(normalize(residual_net()).model)
    with pytest.raises(ModelError) as failed:
        run_session(session, {"image": np.zeros((1, 2, 8, 8), np.float32)})
    for caught in (refused, failed):
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="-1"):
        make_session(b"", threads=-1)


def test_outputs_by_name() -> None:
    feeds = dict(random_inputs(odd_names()))
    outputs = FloatModel(normalize(odd_names()), threads=1).run(feeds)
    np.testing.assert_allclose(outputs["out put"], run_model(odd_names(), feeds)["out put"])
