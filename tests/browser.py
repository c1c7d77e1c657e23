"""A browser without a window, for tests that click through pages: Debian's Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

REQUIRED = "INTACT_TESTS_BROWSER"
"""Variable of the environment that makes a missing browser a failure: continuous integration."""


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Start Chromium and end it; skip the test where there is none."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        _without(f"needs {' and '.join(missing)} (Debian: chromium, chromium-driver)")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        _without("needs the package selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(programs["chromedriver"]))
    try:
        yield browser
    finally:
        browser.quit()


def _without(reason: str) -> NoReturn:
    if os.environ.get(REQUIRED):
        pytest.fail(reason)
    pytest.skip(reason)


def resize(browser: Any, width: int, *, dark: bool = False, media: str = "screen") -> None:
    """Give the page a width in pixels, light or dark colours, and a medium."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})


def complaints(browser: Any) -> list[str]:
    """Return what the page's console says since it was last asked."""
    return [entry["message"] for entry in browser.get_log("browser")]


def requests(browser: Any) -> list[str]:
    """Return the addresses that were asked for since this was last asked."""
    import json

    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
