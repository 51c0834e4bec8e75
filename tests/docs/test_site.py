"""The documentation: it builds without a warning, knows every public name, and names files that exist."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools import include_code

import cnngp
from cnngp.cli import app
from helpers.browser import needs_browser, probed, served, title_of

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1", "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_the_reference_has_every_public_name_and_its_links_lead_somewhere(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")}
    # A package is there with its names.
    every = " ".join(pages.values())
    assert [name for name in dir(cnngp) if not re.search(rf'id="cnngp\.{name}["\.]', every)] == []
    for page, text in pages.items():
        for link in re.findall(r'href="(\.\./\w+\.html)"', text.split("<article")[-1]):
            assert (page.parent / link).is_file(), (page, link)
    estimators = pages[site / "reference" / "estimators.html"]
    assert re.search(r'<a [^>]*href="kernels\.html#cnngp\.Kernel"><code>Kernel</code></a>', estimators)
    assert '<a href="../ntk.html">' in estimators


@pytest.mark.parametrize("name", dir(cnngp))
def test_every_public_name_has_an_example(name: str) -> None:
    thing = getattr(cnngp, name)
    texts = [thing.__doc__ or ""]
    if inspect.ismodule(thing):  # its functions have them
        texts += [getattr(thing, n).__doc__ or "" for n in dir(thing) if not n.startswith("_")]
    assert any(">>> " in text for text in texts)


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text) == [], page


def test_tutorials_show_the_programs_that_the_tests_run(site: Path) -> None:
    pages = include_code.pages()
    assert {page.stem for page in pages} > {page.stem for page in (ROOT / "docs" / "tutorials").glob("*.md")}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert include_code.with_code(text) == text, "run `python tools/include_code.py`"
    assert "most_uncertain" in " ".join(page.read_text() for page in (site / "tutorials").glob("*.html"))


def test_formulas_are_drawn_without_a_script(site: Path) -> None:
    page = (site / "mathematics.html").read_text(encoding="utf-8")
    assert page.count("<math ") > 30
    assert "arithmatex" not in page


@needs_browser
@pytest.mark.parametrize("page", ["index", "gallery", "reference/estimators"])
def test_pages_fit_a_phone(page: str, site: Path, tmp_path: Path) -> None:
    (site / f"{page}-probed.html").write_text(probed((site / f"{page}.html").read_text(encoding="utf-8")))
    with served(site) as address:
        seen = title_of(f"{address}/{page}-probed.html", tmp_path, width=500)
    drawn, images = map(int, re.findall(r"drawn (\d+) of (\d+)", seen)[0])
    assert drawn == images
    assert "too wide: false" in seen


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(text: Path) -> None:
    """A name may leave out the first folders: `program/ops.py` is any file that ends so."""
    named = set(re.findall(r"`([\w/]+\.py)`", text.read_text(encoding="utf-8")))
    every = [
        f"/{path.relative_to(ROOT).as_posix()}"
        for folder in ("src", "tests", "tools", "examples", "benchmarks", "experiments")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in every)] == []


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What a newcomer pastes first: it runs in seconds, on data that is at hand, and says what the README says."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(block, {"__name__": "readme"})
    score = float(re.findall(r"^0\.\d+$", capsys.readouterr().out, re.MULTILINE)[0])
    assert score == pytest.approx(0.996)
    assert (tmp_path / "digits.gp").is_file()


COMMANDS = sorted(
    {
        line.split("  #")[0].strip()
        for text in TEXTS
        for line in re.findall(r"(?:^|`)(cnngp [^`\n]+)", text.read_text(encoding="utf-8"), re.MULTILINE)
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_options_that_are_shown_exist(command: str) -> None:
    known = {name: app.get_command(None, name) for name in app.list_commands(None)}
    words = command.split()[1:]
    for name in words[0].split("|") if words and not words[0].startswith("-") else []:
        if name not in known:
            pytest.fail(f"there is no command {name}")
        options = {option for parameter in known[name].params for option in parameter.opts} | {"--help", "-h"}
        assert {word.strip("[],;.").split("=")[0] for word in words if word.startswith("--")} <= options
