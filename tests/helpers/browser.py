"""What a browser makes of a page, where one is installed."""

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
    (folder / "page.html").write_text(probed(page), encoding="utf-8")
    return title_of((folder / "page.html").as_uri(), folder / "profile", width)


def probed(page: str) -> str:
    """The page with a script that leaves what the browser sees in the title."""
    assert page.count("</body>") == 1
    return page.replace("</body>", _PROBE)


def title_of(
    address: str, profile: Path, width: int, milliseconds: int = 5000, console: str = "", dark: bool = False
) -> str:
    """The title of a page once its scripts have run. Nothing in the console: asserted here, but for `console`."""
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"),
            *(f"--user-data-dir={profile}", f"--window-size={width},2000", f"--virtual-time-budget={milliseconds}"),
            *("--blink-settings=preferredColorScheme=0",) * dark,
            *("--dump-dom", address),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line and not (console and console in line)]
    assert said == []
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    return title[1]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder's files on this machine, for pages whose scripts a browser refuses to run from files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
