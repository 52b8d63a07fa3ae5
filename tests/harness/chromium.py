"""The system's Chromium, headless, for tests of rendered pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def browser_page(width: int, **context: Any) -> Iterator[Any]:
    """Open a page in a headless Chromium with options of its context, such as `color_scheme`."""
    from playwright.sync_api import sync_playwright

    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield browser.new_page(viewport={"width": width, "height": 900}, **context)
        finally:
            browser.close()
