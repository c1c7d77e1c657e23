"""What tests know about the runtimes: versions that are installed and that were tested."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import onnxruntime as ort
from onnx import TensorProto, helper

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


def installed(package: str) -> str:
    """The version of a package, "" where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def known_version(package: str, constraints: Path = CONSTRAINTS) -> str:
    """The version that the repository was tested with, "" if that is not known."""
    text = constraints.read_text(encoding="utf-8") if constraints.is_file() else ""
    found = re.search(rf"^{re.escape(package)}==(\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def about_runtimes(packages: Sequence[str], constraints: Path = CONSTRAINTS) -> str:
    """What a failure of a test that holds a fact about runtimes means: drift, or a regression."""
    lines = []
    for package in packages:
        here, known = installed(package), known_version(package, constraints)
        if here == known:
            meaning = "the version that was tested: this is a regression, or another processor"
        else:
            meaning = f"{known or 'no known version'} was tested: the runtime may have changed"
        lines.append(f"this test holds a fact about {package} {here or '(missing)'}; {meaning}")
    return "\n".join(lines)


@cache
def newest_opset() -> int:
    """The newest opset of ONNX's own operators that the installed ONNX Runtime runs."""
    opset = 17
    while _runs(opset + 1):
        opset += 1
    return opset


def _runs(opset: int) -> bool:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception:  # the runtime raises a dozen unrelated classes
        return False
    return True
