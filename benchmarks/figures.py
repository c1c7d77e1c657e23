"""The figures that benchmarks measured and pages quote: one file, and the tables made of it.

    python benchmarks/figures.py        # writes the tables of docs/figures.json into the pages

`benchmarks/quantizers.py --figures docs/figures.json` measures and writes the file. A table stands
in a page between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``, and is never edited by
hand: so one fact has one figure on every page, which a test checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "figures.json"
PAGES = ("README.md", "docs/results.md", "docs/measurements.md")
TOOLS = {"intact": "intact", "onnxruntime": "ONNX Runtime's quantizer", "nncf": "NNCF"}
TITLES = {
    "resnet20": "ResNet-20",
    "mobilenetv2": "MobileNetV2 x0.5",
    "mobilenetv2-raw": "the same, unoptimized export",
    "mlperf_resnet8": "MLPerf Tiny ResNet8",
    "vit": "vision transformer, 6 layers",
    "efficientnet_lite1": "EfficientNet-Lite1",
}
_TABLE = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)

Figures = Mapping[str, Any]


def read() -> Figures:
    """Read the file."""
    found: Figures = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(figures: Figures, path: Path) -> None:
    """Write what was measured; what other benchmarks measured of the same models stays."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"models": {}}
    models = {**known["models"]}
    for name, each in figures["models"].items():
        models[name] = {**models.get(name, {}), **each}
    made = {"run": figures["run"], "models": models}
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def against(figures: Figures) -> str:
    """Make the table of 8 bits, beside other quantizers; the best of a row is bold."""
    head = ["model", "float", *TOOLS.values(), "4-bit weights", "size", "speed over float"]
    rows = []
    for name, each in figures["models"].items():
        made = [each["int8"][tool] for tool in TOOLS]
        four = each.get("four_bits")
        size = made[0].get("size_percent")
        rows.append(
            [
                TITLES[name],
                f"{each['float']:.2f}",
                *_marked(made, "top1"),
                f"{four['balanced']:.2f}" if four else "",
                "" if size is None else f"{size} %",
                ", ".join(cell for cell in _marked(made, "speed") if cell != _ERROR),
            ]
        )
    return _table(head, rows)


def eight(figures: Figures) -> str:
    """Make the table of 8 bits of intact alone, with intervals."""
    head = ["model", "float top-1", "int8 top-1", "change, 95 % interval", "output SQNR"]
    rows = []
    for name, each in figures["models"].items():
        own = each["int8"]["intact"]
        change = f"{own['top1'] - each['float']:+.2f} [{own['low']:+.2f}, {own['high']:+.2f}]"
        cells = [f"{each['float']:.2f}", f"{own['top1']:.2f}", change, f"{own['sqnr_db']:.1f} dB"]
        rows.append([TITLES[name], *cells])
    return _table(head, rows)


TABLES: Mapping[str, Callable[[Figures], str]] = {"against": against, "eight": eight}


def filled(text: str, figures: Figures) -> str:
    """Return a page with its tables made anew."""
    return _TABLE.sub(lambda at: at[1] + TABLES[at[2]](figures) + at[4], text)


_ERROR = "an error"


def _marked(made: list[Figures], key: str) -> list[str]:
    """Write one figure of each tool, the best in bold."""
    best = max(each[key] for each in made if key in each)
    written = []
    for each in made:
        cell = f"{each[key]:.2f}" if key in each else _ERROR
        written.append(f"**{cell}**" if each.get(key) == best else cell)
    return written


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Write the tables into the pages."""
    figures = read()
    for name in PAGES:
        page = ROOT / name
        page.write_text(filled(page.read_text(encoding="utf-8"), figures), encoding="utf-8")


if __name__ == "__main__":
    main()
