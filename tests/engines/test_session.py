"""Sessions: what the runtime refuses is one line of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from intact.engines import session
from intact.engines.session import FloatModel, Optimization, make_session, run_session
from intact.errors import ModelError, UsageError
from intact.graph import Graph, normalize, save_model
from intact.graph.files import load, save
from tests.models import (
    ModelBuilder,
    custom_domain,
    odd_names,
    random_inputs,
    residual_net,
    run_model,
)
from tests.runtimes import newest_opset


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


@pytest.fixture
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model be too large for one message."""
    monkeypatch.setattr(session, "_LARGEST_MESSAGE", 10)
    monkeypatch.setattr(save, "_EXTERNAL_FROM", 100)
    monkeypatch.setattr(save, "LARGEST_FILE", 10)


@pytest.mark.usefixtures("all_is_large")
@pytest.mark.parametrize("place", ["memory", "beside", "inside", "replaced", "two folders"])
def test_large_models_run_wherever_their_weights_are(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, feeds = normalize(residual_net()), dict(random_inputs(residual_net()))
    expected = graph.model
    path = tmp_path / "m.onnx"
    if place == "inside":
        monkeypatch.setattr(load, "MAP_FROM", 1)
        monkeypatch.setattr(load, "_MAPPED_WEIGHT", 100)
        path.write_bytes(ir.to_proto(graph.model).SerializeToString())
        graph = Graph.load(path)
    elif place != "memory":
        graph.save(path)
        graph = Graph.load(path)
    if place == "replaced":
        data = path.with_name("m.onnx.data")
        (tmp_path / "zeros").write_bytes(bytes(data.stat().st_size))
        (tmp_path / "zeros").replace(data)
    elif place == "two folders":
        graph.save(tmp_path / "other" / "m.onnx")
        other = Graph.load(tmp_path / "other" / "m.onnx").model
        name = max(graph.model.graph.initializers)
        graph.model.graph.initializers[name].const_value = other.graph.initializers[
            name
        ].const_value
    is_in_place = save.in_place(graph.model) is not None
    assert is_in_place == (place in {"beside", "inside"})
    result = run_session(make_session(graph.model, threads=1), feeds)[0]
    plain = ir.to_proto(expected).SerializeToString()
    np.testing.assert_allclose(
        result, run_session(make_session(plain, threads=1), feeds)[0], rtol=1e-5, atol=1e-6
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


def test_a_model_of_an_opset_that_is_newer_than_the_runtime_is_refused() -> None:
    model = residual_net(17)
    model.opset_import[0].version = newest_opset() + 1
    refused = rf"runs no opset of ai\.onnx beyond {newest_opset()}; export the model"
    with pytest.raises(ModelError, match=refused):
        make_session(model.SerializeToString())


def test_outputs_by_name() -> None:
    feeds = dict(random_inputs(odd_names()))
    outputs = FloatModel(normalize(odd_names()), threads=1).run(feeds)
    np.testing.assert_allclose(outputs["out put"], run_model(odd_names(), feeds)["out put"])


@pytest.mark.parametrize(("side", "keeps"), [(64, True), (4096, False)])
def test_memory_of_large_tensors_is_given_back(side: int, *, keeps: bool) -> None:
    """The runtime's own store would keep it, in powers of two, while the session lives."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 1, 4, 4])
    b.output(b.node("Expand", x, b.constant(np.array([1, side * side // 16, 4, 4]))))
    session = make_session(normalize(b.build()).model)
    assert session.get_session_options().enable_cpu_mem_arena is keeps
