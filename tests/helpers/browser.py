"""What a browser makes of a page, where one is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

# The browser says what it sees in the page's title.
_PROBE = """<script>window.addEventListener("load", () => {
    const images = [...document.images];
    const seen = i => i.complete && i.naturalWidth > 0 && i.getBoundingClientRect().width > 0;
    const wide = document.documentElement.scrollWidth > window.innerWidth;
    const cells = document.querySelectorAll("td").length;
    document.title = `drawn ${images.filter(seen).length} of ${images.length}, too wide: ${wide}, cells ${cells}`;
});</script></body>"""


def opened(page: str, folder: Path, width: int) -> str:
    """How many images are drawn, whether anything is wider than the window, how many cells tables have.

    No console errors: asserted here.
    """
    assert page.count("</body>") == 1
    (folder / "page.html").write_text(page.replace("</body>", _PROBE), encoding="utf-8")
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"),
            *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width},2000", "--virtual-time-budget=5000"),
            *("--dump-dom", (folder / "page.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    return title[1]
