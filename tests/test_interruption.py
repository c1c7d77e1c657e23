"""Ctrl-C while packages load ends a command with one line; nothing else reaches stderr."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from intact import demo
from intact.cli.entry import run

INTERRUPTING = """
import os, signal, sys

class Finder:
    waiting = {module!r}

    def find_spec(self, name, path=None, target=None):
        if name == self.waiting:
            self.waiting = ""
            for _ in range({times}):
                os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Finder())
"""
"""Sends Ctrl-C to its own process when a module begins to load."""


def interrupted(tmp_path: Path, module: str, times: int = 1) -> subprocess.CompletedProcess[str]:
    """Run ``intact quantize`` and press Ctrl-C when a module begins to load."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING.format(module=module, times=times))
    paths = [str(tmp_path), str(Path(__file__).resolve().parents[1] / "src")]
    line = ["quantize", str(demo.model_path()), "--data", str(demo.calibration_path())]
    return subprocess.run(
        [sys.executable, "-m", "intact", *line, "--output", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        # As in a terminal, also where the tests themselves run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize(
    "module",
    [
        "intact.cli.entry",
        "click",
        "numpy",
        "numpy._core.multiarray",
        "onnx",
        "onnxruntime",
        "intact.flow.quantize",
        "intact.results.first_run",
    ],
)
def test_ctrl_c_while_a_package_loads_is_one_line(tmp_path: Path, module: str) -> None:
    done = interrupted(tmp_path, module)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "intact: stopped; nothing was written\n"
    assert not (tmp_path / "out").exists()


def test_ctrl_c_twice_is_one_line_too(tmp_path: Path) -> None:
    done = interrupted(tmp_path, "click", times=2)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "intact: stopped; nothing was written\n"


def test_warnings_of_packages_are_not_printed() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        assert run(["targets"]) == 0
        assert np.float32(1e38) * np.float32(1e38) == np.inf
    assert not seen


def test_a_message_of_onnx_runtime_stands_in_the_error_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reshape = helper.make_node("Reshape", ["x", "shape"], ["r"], name="impossible")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [7, 2], np.ones(14, np.float32))
    graph = helper.make_graph(
        [reshape, helper.make_node("MatMul", ["r", "w"], ["y"], name="product")],
        "impossible",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    shapes = np.tile(np.array([-1, 7]), (4, 1))
    np.savez(tmp_path / "x.npz", x=np.ones((4, 3), np.float32), shape=shapes.reshape(-1)[:2])
    line = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "x.npz")]
    code = run([*line, "--output", str(tmp_path / "out")])
    error = capfd.readouterr().err
    assert code == 2
    assert error.startswith("intact: ")
    assert error.count("\n") == 1
