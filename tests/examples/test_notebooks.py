"""The notebooks are well formed, without outputs, and their cells run in order."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

import intact
from tests.examples.scripts import EXAMPLES

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
KEYS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}
"""What a cell of nbformat 4.5 has."""


def read(path: Path) -> dict[str, Any]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(notebook, dict)
    return notebook


def run_cells(name: str) -> dict[str, Any]:
    """Run the cells of a notebook as a kernel would; return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in read(EXAMPLES / name)["cells"]:
        if cell["cell_type"] == "code":
            place = f"{name}, {cell['id']}"
            tree, last = ast.parse("".join(cell["source"]), place), None
            end = tree.body[-1]
            if isinstance(end, ast.Expr):  # a kernel shows it
                tree.body.pop()
                last = ast.Expression(end.value)
            exec(compile(tree, place, "exec"), names)
            if last is not None:
                repr(eval(compile(last, place, "eval"), names))
    return names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_well_formed_and_has_no_outputs(path: Path) -> None:
    notebook = read(path)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    identifiers = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    for cell in notebook["cells"]:
        assert set(cell) == KEYS[cell["cell_type"]]
        assert re.fullmatch(r"[\w-]{1,64}", cell["id"])
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_first_steps(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_cells("first_steps.ipynb")
    assert names["evaluation"].accuracy.top1[1] > 98
    assert sum(layer.mismatches for layer in names["verification"].layers) == 0
    printed = capsys.readouterr().out
    assert "try: intact quantize " in printed
    accuracies = [intact.evaluate(names[name], names["test"]) for name in ("worse", "better")]
    assert accuracies[0].sqnr_db < accuracies[1].sqnr_db
    assert (here / "out" / "first-steps" / "plan.json").is_file()


def test_mixed_precision(here: Path) -> None:
    names = run_cells("mixed_precision.ipynb")
    found, evaluation = names["found"], names["evaluation"]
    assert found.best.score >= 36
    assert found.best.cost < max(trial.cost for trial in found.standing.trials)
    nodes = intact.inspect("out/mixed").nodes
    assert {node.weight_bits for node in nodes if node.weight_bits is not None} == {4, 8}
    assert evaluation.accuracy.difference.difference > -1.5
    again = (here / "out" / "again" / "model.int8.onnx").read_bytes()
    assert again == (here / "out" / "mixed" / "model.int8.onnx").read_bytes()
