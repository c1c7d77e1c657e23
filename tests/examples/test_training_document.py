"""What docs/training.md shows runs, in the order in which it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_commands(here: Path, say: Any) -> None:
    commands = [line.split()[1:] for block in blocks("sh") for line in block.splitlines()]
    assert [words[0] for words in commands] == ["quantize", "train", "evaluate", "verify", "train"]
    shown = [say(*words) for words in commands]
    assert "top-1" in shown[2]
    assert "tflite" in shown[3]
    assert (here / "trained.train.jsonl").is_file()
    assert not (here / "trained.train.pt").exists()


def test_snippets(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "examples")
    import digits

    torch.manual_seed(0)
    loader, _ = digits.loaders(96)
    names: dict[str, Any] = {"model": digits.Net().eval(), "loader": loader}
    for number, snippet in enumerate(blocks("python")):
        exec(compile(snippet, f"training.md, snippet {number}", "exec"), names)
        if "load_state_dict" in snippet:
            model, module = names["model"].eval(), names["module"].eval()
            module.enable_quantizers(False)
            torch.testing.assert_close(model(names["image"]), module(names["image"]))
            module.enable_quantizers()
    assert names["codes"]
    assert (here / "trained" / "model.xml").is_file()
    sys.modules.pop("digits")


def test_steps_of_mqbench(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "docs" / "from-mqbench.md").read_text(encoding="utf-8")
    (here / "academic.toml").write_text(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    monkeypatch.syspath_prepend(REPOSITORY / "examples")
    import digits

    loader, _ = digits.loaders(96)
    names: dict[str, Any] = {"model": digits.Net(), "loader": loader}
    names["example"] = next(iter(loader))[0]
    for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(snippet, "from-mqbench.md", "exec"), names)
    assert "tensorrt" in names["result"].exports
    grids = [each.grid for each in names["academic"].quantizers.values()]
    assert {each.bits for each in grids} == {4}
    sys.modules.pop("digits")
