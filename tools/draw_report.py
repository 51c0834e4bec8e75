"""Draws docs/pictures/report.png, the report of the README's first command: python tools/draw_report.py

Needs Chromium. Prints the errors of the run, which stand in the README and in docs/index.md as well.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "report.png"
WIDTH, HEIGHT, COLOURS = 960, 900, 128
TOLD = ("test ", "leave-one-out ")


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("Chromium is not installed")
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "cnngp", "classify", "--output", folder]
        said = subprocess.run(run, check=True, capture_output=True, text=True).stdout
        shot = Path(folder) / "shot.png"
        page = (Path(folder) / "report.html").as_uri()
        browser = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser += [
            f"--user-data-dir={folder}/profile",
            f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={shot}",
            page,
        ]
        subprocess.run(browser, check=True, capture_output=True)
        with Image.open(io.BytesIO(shot.read_bytes())) as image:
            image.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)
    print("\n".join(line for line in said.splitlines() if line.startswith(TOLD)))
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
