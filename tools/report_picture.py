"""Draws docs/pictures/report.png: the network of the demo's report, in the colours of its cost.

python tools/report_picture.py        needs Chromium, selenium and Pillow
"""

from __future__ import annotations

import base64
import io
import os
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import intact  # noqa: E402 - see above
from tests.browser import opened_browser, resize  # noqa: E402

DEMO = ROOT / "src" / "intact" / "demo"
PICTURE = ROOT / "docs" / "pictures" / "report.png"
WIDTH = 1280
COLORS = 128


def picture_of_network(page: Path) -> bytes:
    """Return the part of a report that shows the network, as a PNG."""
    with opened_browser() as browser:
        resize(browser, WIDTH)
        browser.get(page.as_uri())
        time.sleep(1)
        find = "return document.getElementById('network').getBoundingClientRect().toJSON()"
        box = browser.execute_script(find)
        clip = {each: box[each] for each in ("x", "y", "width", "height")} | {"scale": 1}
        taken = browser.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
    return base64.b64decode(taken["data"])


def main() -> None:
    """Quantize the demo's model to weights of 3 bits, report on it, and take the picture."""
    # Paths on the page are those that the user gave: from the folder of the demo they are short.
    os.chdir(DEMO)
    with tempfile.TemporaryDirectory() as folder:
        result = intact.quantize(
            "digits.onnx", "digits-calib.npz", weight_bits=3, preset="fast", output=folder
        )
        intact.report(result, "digits-test.npz")
        png = picture_of_network(Path(folder) / "report.html")
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS)
    PICTURE.parent.mkdir(exist_ok=True)
    picture.save(PICTURE, optimize=True)
    print(PICTURE.relative_to(ROOT), f"{PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
