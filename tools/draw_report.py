"""Draw docs/pictures/report.png, the report of the README's first command: python tools/draw_report.py

Needs Chromium. Also updates the lines of the run that the README shows.
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
README = ROOT / "README.md"
LONGEST = 110
TOLD = ("data", "choice", "test", "leave-one-out")


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
    told = {line.split(" ")[0]: _cut(line) for line in said.splitlines() if line.split(" ")[0] in TOLD}
    # A line of the run is recognised by the two or more spaces after its name, which sentences do not have.
    lines = README.read_text(encoding="utf-8").split("\n")
    shown = [told.get(line.split("  ")[0], line) if "  " in line else line for line in lines]
    README.write_text("\n".join(shown), encoding="utf-8")
    print("\n".join(told.values()))
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST].rsplit(' ', 1)[0]} …"


if __name__ == "__main__":
    main()
