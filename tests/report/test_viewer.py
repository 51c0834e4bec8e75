"""`cnngp view`: its answers, who may ask it, and the page in a real browser."""

import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnngp import Conv, Dense, GPClassifier, ReLU, Sequential, Step
from cnngp.cli import run
from cnngp.common.errors import DatasetError
from cnngp.report import plots
from cnngp.report import viewer as server
from cnngp.report.answers import Answers
from cnngp.report.run import run as report_run
from cnngp.report.viewer import Viewer
from helpers.browser import needs_browser, title_of

from .conftest import DIGITS, WRONG

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())


# What somebody does with the page once it is there, as a script of it.
VISIT = """<script>
const wait = ms => new Promise(done => setTimeout(done, ms));
const until = async test => { for (let i = 0; i < 200 && !test(); i++) await wait(50); };
addEventListener("load", async () => {
  await until(() => model);
  DONE
});
</script></body>"""


@contextmanager
def serving(answers: Answers, script: str = "") -> Iterator[Viewer]:
    with Viewer(answers) as viewer:
        viewer.page = viewer.page.replace(b"</body>", VISIT.replace("DONE", script).encode())
        threading.Thread(target=viewer.serve_forever, daemon=True).start()
        yield viewer
        viewer.shutdown()


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray((255 * pixels[0]).astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


# ---- answers --------------------------------------------------------------------------------------------------------


def test_an_image_gets_the_models_own_answer(answers: Answers, clf: GPClassifier) -> None:
    for x in DIGITS.X_test[:5]:
        seen = answers.look(png(x))
        shown = (np.floor(255 * x) / 255).astype(np.float32)[None]  # what a PNG of bytes keeps of the pixels
        P = clf.predict_proba(shown)[0]
        assert seen["class"] == str(clf.predict(shown)[0])
        assert seen["probabilities"][0]["probability"] == pytest.approx(P.max())
        assert sum(p["probability"] for p in seen["probabilities"]) == pytest.approx(1.0)
        assert seen["set"] == clf.classes_[clf.predict_set(shown, coverage=0.9)[0]].astype(str).tolist()
        assert seen["novelty"] == pytest.approx(clf.novelty(shown)[0], abs=1e-6)
        assert all(v["share"] > 0 for v in seen["for"])
        assert all(v["share"] < 0 for v in seen["against"])
        json.dumps(seen, allow_nan=False)


def test_the_page_draws_as_the_training_images_are(answers: Answers, tmp_path: Path) -> None:
    told = answers.about()
    assert told["about"].startswith("200 training images of 1 × 8 × 8, 10 classes, leave-one-out error ")
    assert told["light_on_dark"]
    assert 0.8 < told["ink"] <= 1.0  # digits fill their frames
    inverse = GPClassifier(NET, noise=0.1, device="cpu").fit(1.0 - DIGITS.X, DIGITS.y)
    told = Answers(inverse, "m.gp", tmp_path / "d.csv").about()
    assert not told["light_on_dark"]
    assert 0.8 < told["ink"] <= 1.0


def test_the_models_scale_of_pixels_is_used(tmp_path: Path) -> None:
    bytes_ = GPClassifier(NET, device="cpu").fit(255 * DIGITS.X, DIGITS.y)
    answers = Answers(bytes_, "bytes.gp", tmp_path / "d.csv", largest=255)
    found = [answers.look(png(x))["class"] for x in DIGITS.X_test[:20]]
    assert found == [str(c) for c in bytes_.predict(255 * DIGITS.X_test[:20])]


def test_a_number_gets_an_interval_and_the_images_most_like_it(numbers: Answers) -> None:
    reg, x = numbers.model, DIGITS.X_test[:1]
    seen = numbers.look(png(x[0]))
    shown = (np.floor(255 * x) / 255).astype(np.float32)
    assert seen["value"] == pytest.approx(reg.predict(shown)[0], rel=1e-5)
    assert seen["interval"] == pytest.approx(reg.predict_interval(shown, coverage=0.9)[0], rel=1e-5)
    assert 1 - seen["near"][0]["share"] == pytest.approx(seen["novelty"], abs=1e-6)
    told = numbers.about()
    assert told["classes"] == []
    assert told["knows"] == "numbers from 0 to 30"
    assert (
        told["about"] == f"200 training images of 1 × 8 × 8, one number each, leave-one-out error {reg.loo_error_:.4g}"
    )
    assert len(told["examples"]) == 5
    json.dumps(told, allow_nan=False)


def test_where_a_model_looks_is_a_picture_where_its_kernel_has_a_gradient(answers: Answers, tmp_path: Path) -> None:
    assert answers.where(png(DIGITS.X_test[0]))["where"].startswith("data:image/png;base64,")
    step = GPClassifier(Sequential(Conv(3), Step(), Dense()), noise=0.1, device="cpu")
    tangent = GPClassifier("small_cnn", noise=0.1, kind="ntk", device="cpu")
    for model in (step, tangent):
        shown = Answers(model.fit(DIGITS.X, DIGITS.y), "m.gp", tmp_path / "d.csv")
        assert shown.where(png(DIGITS.X_test[0])) == {"where": None}


def test_models_and_images_that_cannot_be_shown(answers: Answers, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a picture that can be read"):
        answers.look(b"not a picture")
    flat = GPClassifier(device="cpu").fit(DIGITS.X.reshape(200, -1), DIGITS.y)
    several = GPClassifier(NET, device="cpu").fit(DIGITS.X, np.eye(10, dtype=int)[DIGITS.y])
    for model, message in ((flat, "not on pictures"), (several, "several labels")):
        with pytest.raises(ValueError, match=message):
            Answers(model, "m.gp", tmp_path / "d.csv")


@pytest.mark.filterwarnings("ignore:noise='loo' chose the most noise")
def test_models_that_suspect_no_label_say_why(tmp_path: Path) -> None:
    inducing = Answers(GPClassifier(NET, device="cpu", inducing=50).fit(DIGITS.X, DIGITS.y), "i", tmp_path / "d.csv")
    assert inducing.about()["suspects"] == []
    assert "inducing images" in inducing.about()["about_suspects"]
    seen = inducing.look(png(DIGITS.X_test[0]))
    assert "set" not in seen
    assert all(v["row"] < inducing.images == 50 for v in seen["for"])
    X = np.random.default_rng(0).random((60, 1, 8, 8))
    guessing = GPClassifier(NET, device="cpu", noise="loo").fit(X, np.arange(60) % 3)
    told = Answers(guessing, "noise.gp", tmp_path / "d.csv").about()
    assert told["suspects"] == []
    assert told["about_suspects"].startswith("No better than guessing")
    assert told["about"].endswith("not clearly better than guessing")


# ---- the server -----------------------------------------------------------------------------------------------------


def ask(
    viewer: Viewer, method: str, path: str, body: bytes | None = None, *, whole: bool = False, **headers: str
) -> tuple[int, bytes]:
    """An answer's status and content; `path` is below the token's unless it is the `whole`."""
    connection = http.client.HTTPConnection(*viewer.server_address[:2], timeout=300)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request(method, path if whole else f"/{viewer.token}{path}", body, named)
        answer = connection.getresponse()
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
        return answer.status, answer.read()


def test_only_this_machine_and_its_own_page_are_answered(answers: Answers) -> None:
    with serving(answers) as viewer:
        assert viewer.server_address[0] == "127.0.0.1"
        port = viewer.server_port
        assert ask(viewer, "GET", "/model")[0] == 200
        assert ask(viewer, "GET", "/model", Host=f"localhost:{port}")[0] == 200
        assert ask(viewer, "GET", "/model", Host=f"evil.example:{port}")[0] == 403
        picture = png(DIGITS.X_test[0])
        assert ask(viewer, "POST", "/look", picture, Origin=f"http://127.0.0.1:{port}")[0] == 200
        assert ask(viewer, "POST", "/look", picture, Origin="http://evil.example")[0] == 403
        assert ask(viewer, "POST", "/decide", b"{}", Origin="null")[0] == 403


def test_other_users_of_the_machine_are_not_answered(answers: Answers) -> None:
    with serving(answers) as viewer, serving(answers) as other:
        assert viewer.token != other.token
        assert viewer.address == f"http://127.0.0.1:{viewer.server_port}/{viewer.token}/"
        for path in (
            *("/", "/model", "/image/0", "/labels.csv", "//", "*"),
            *(f"/{other.token}/model", f"/{viewer.token[:-1]}/", "/%C3%A9/"),
        ):
            status, content = ask(viewer, "GET", path, whole=True)
            assert status == 403
            assert b"open the whole address" in content
        assert ask(viewer, "POST", "/decide", b"{}", whole=True)[0] == 403
        page = ask(viewer, "GET", "/")[1].decode()
    assert '<link rel="icon" href="data:' in page  # without one a browser asks for it, without the token
    assert not re.search(r"""["'(]/\w""", page)  # every address in it is relative to the one with the token


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/etc/passwd", None, 404),
        ("GET", "/image/100000", None, 404),
        ("GET", "/image/-1", None, 404),
        ("POST", "/elsewhere", b"", 404),
        ("POST", "/look", b"no picture", 400),
        ("POST", "/decide", b"{not json", 400),
        ("POST", "/decide", b"[" * 100_000, 400),
        ("POST", "/decide", b'{"row": [7]}', 400),
        ("POST", "/decide", b'{"row": true, "decision": "keep"}', 400),
        ("POST", "/decide", b'{"row": 7, "decision": ["keep"]}', 400),
        ("GET", "/image/3", None, 200),
        ("GET", "/labels.csv", None, 200),
    ],
)
def test_requests(answers: Answers, method: str, path: str, body: bytes | None, status: int) -> None:
    with serving(answers) as viewer:
        found, content = ask(viewer, method, path, body)
        assert found == status
        assert status == 200 or json.loads(content)["error"]


def test_large_uploads_are_refused_unread(answers: Answers) -> None:
    with serving(answers) as viewer:
        assert ask(viewer, "POST", "/look", b"", Content_Length=str(10**10))[0] == 413


def test_what_a_refused_request_carries_is_not_read_as_the_next_one(answers: Answers) -> None:
    body = json.dumps({"row": answers.suspects[0]["row"], "decision": "drop"})
    with serving(answers) as viewer:
        host = f"Host: 127.0.0.1:{viewer.server_port}"
        hidden = f"POST /{viewer.token}/decide HTTP/1.1\r\n{host}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        for first in (
            f"POST /{viewer.token}/look HTTP/1.1\r\n{host}\r\nOrigin: http://evil.example",
            "GET / HTTP/1.1\r\nHost: evil.example",
        ):
            with socket.create_connection(viewer.server_address[:2], timeout=30) as connection:
                connection.sendall(f"{first}\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}".encode())
                assert connection.makefile("rb").read().count(b"HTTP/1.") == 1  # one answer, then the end
    assert len(answers.decisions) == 0


def half_a_request(viewer: Viewer) -> bytes:
    host = f"Host: 127.0.0.1:{viewer.server_port}"
    return f"POST /{viewer.token}/look HTTP/1.1\r\n{host}\r\nContent-Length: 9\r\n\r\n".encode()


def test_one_who_stops_sending_keeps_nobody_waiting(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server._Handler, "timeout", 1.0)
    with serving(answers) as viewer, socket.create_connection(viewer.server_address[:2], timeout=30) as stuck:
        stuck.sendall(half_a_request(viewer))
        time.sleep(0.2)  # until it is being read
        assert ask(viewer, "GET", "/model")[0] == 200
        assert stuck.recv(1) == b""  # closed, when its time is up


def test_connections_that_ask_nothing_are_bounded_and_keep_nobody_out(answers: Answers) -> None:
    before = threading.active_count()
    with serving(answers) as viewer, ExitStack() as stack:
        for k in range(4 * server.MOST_CONNECTIONS):
            idle = stack.enter_context(socket.create_connection(viewer.server_address[:2], timeout=30))
            if k % 2:
                idle.sendall(half_a_request(viewer))
        assert ask(viewer, "GET", "/model")[0] == 200
        until = time.monotonic() + 10.0  # threads of connections that were closed end when they are next run
        while threading.active_count() - before > server.MOST_CONNECTIONS + 1 and time.monotonic() < until:
            time.sleep(0.05)
        assert threading.active_count() - before <= server.MOST_CONNECTIONS + 1


def test_a_model_of_features_shows_the_pictures_that_they_are_of(tmp_path: Path) -> None:
    """In its report and in the viewer, also from a file; a new picture has no features here."""
    rows, test = (X.mean(2)[:, 0] for X in (DIGITS.X, DIGITS.X_test))
    data = replace(DIGITS, X=rows, X_test=test, pictures=DIGITS.X, pictures_test=DIGITS.X_test)
    found = report_run(data, GPClassifier("dense_nngp", noise="loo", device="cpu"), tmp_path, say=lambda *words: None)
    shown = [*found.evaluation.wrong, *found.evaluation.uncertain, *found.evaluation.suspect]
    assert len(shown) > 5
    assert {picture.pixels.shape for picture in shown} == {(1, 8, 8)}
    assert all(n.pixels.shape == (1, 8, 8) for picture in shown for n in picture.neighbours)
    model = GPClassifier.load(tmp_path / "model.gp", device="cpu")
    np.testing.assert_array_equal(model.pictures_, DIGITS.X)
    answers = Answers(model, "features", tmp_path / "labels.csv", suspects=3)
    assert answers.training_image(5) == plots.picture(DIGITS.X[5])
    assert (answers.about()["examples"], answers.about()["width"]) == ([], 8)
    with pytest.raises(DatasetError, match="fitted on features of pictures"):
        answers.look(plots.picture(DIGITS.X[0]))


# ---- the page -------------------------------------------------------------------------------------------------------

# A person draws a stroke, drops a file, and decides about three labels. What was seen goes into the title.
PERSON = """
  const area = $("canvas"), box = area.getBoundingClientRect();
  const point = (kind, x, y) => area.dispatchEvent(new PointerEvent(kind,
    { bubbles: true, clientX: box.left + x * box.width, clientY: box.top + y * box.height }));
  point("pointerdown", 0.5, 0.1);
  for (let k = 0; k <= 20; k++) point("pointermove", 0.5, 0.1 + 0.8 * k / 20);
  point("pointerup", 0.5, 0.9);
  await until(() => $("class"));
  const drawn = $("class").textContent, bars = document.querySelectorAll(".bar").length;
  const files = new DataTransfer();
  files.items.add(new File([await (await fetch("image/0")).blob()], "zero.png"));
  $("class").textContent = "?";
  $("drop").dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: files }));
  await until(() => $("class").textContent !== "?");
  const dropped = $("class").textContent, novelty = $("novelty").textContent, region = $("region").textContent;
  $("tab-labels").click();
  const press = async (row, action) => {
    [...document.querySelectorAll(".suspect")[row].querySelectorAll("button")][action].click();
    await until(() => document.querySelectorAll(".suspect.done").length > row);
  };
  await press(0, 1); await press(1, 2); await press(2, 0);
  const wide = document.documentElement.scrollWidth > innerWidth;
  document.title = JSON.stringify({ drawn, dropped, bars, novelty, region, wide, progress: $("progress").textContent,
    background: getComputedStyle(document.body).backgroundColor });
"""


@needs_browser
def test_a_person_looks_draws_and_decides(answers: Answers, tmp_path: Path) -> None:
    with serving(answers, PERSON) as viewer:
        title = title_of(viewer.address, tmp_path / "profile", 500, milliseconds=30_000, dark=True)
    seen = json.loads(unescape(title))
    assert seen["background"] == "rgb(22, 26, 36)"
    assert seen["drawn"] == "1"
    assert seen["dropped"] == str(DIGITS.y[0])
    assert seen["bars"] == 10
    assert seen["novelty"].endswith("of the training images have a nearer one")
    assert seen["region"] == f"{DIGITS.y[0]} holds the class of 90 % of such images"
    assert seen["wide"] is False
    assert "3 decided" in seen["progress"]
    rows = [s["row"] for s in answers.suspects[:3]]
    answers.decisions.refresh()
    assert [answers.decisions.lines[row]["decision"] for row in rows] == ["relabel", "drop", "keep"]
    assert answers.decisions.lines[WRONG]["label"] == str(DIGITS.y[WRONG])


# One who has photographs sees what the model knows, where to drop one, and tries an example.
VISITOR = """
  const before = { hint: $("hint").offsetHeight > 0, canvas: $("canvas").offsetHeight > 0,
    classes: $("classes").textContent, examples: document.querySelectorAll("#examples img").length };
  document.querySelector("#examples button").click();
  await until(() => $("class"));
  await until(() => $("canvas").offsetHeight > 0);
  const shape = $("canvas").offsetWidth / $("canvas").offsetHeight;
  document.title = JSON.stringify({ ...before, shape, class: $("class").textContent, hidden: $("hint").hidden,
    wide: document.documentElement.scrollWidth > innerWidth });
"""


@needs_browser
def test_a_model_of_photographs_opens_with_its_classes_a_place_to_drop_and_examples(tmp_path: Path) -> None:
    X = np.random.default_rng(0).random((20, 3, 6, 9)).astype(np.float32)
    X[:10, 0] += 1.0
    clf = GPClassifier(NET, device="cpu").fit(X / 2, np.repeat(["red fox", "<sea>"], 10))
    with serving(Answers(clf, "photographs.gp", tmp_path / "d.csv"), VISITOR) as viewer:
        seen = json.loads(unescape(title_of(viewer.address, tmp_path / "profile", 1200, milliseconds=30_000)))
    assert seen.pop("shape") == pytest.approx(9 / 6, rel=0.02)
    assert seen == {"hint": True, "canvas": False, "classes": "<sea>, red fox", "examples": 2, "class": "<sea>",
                    "hidden": True, "wide": False}  # fmt: skip


# One with a model of numbers opens an image, and types what it should have been.
MEASURER = """
  const knows = $("classes").textContent;
  document.querySelector("#examples button").click();
  await until(() => $("class"));
  await until(() => !$("where").hidden);
  $("tab-labels").click();
  const box = document.querySelector(".suspect"), field = box.querySelector("input");
  field.value = "2.5";
  field.dispatchEvent(new Event("change"));
  await until(() => document.querySelector(".suspect.done"));
  document.title = JSON.stringify({ knows, value: $("class").textContent, region: $("region").textContent,
    where: $("where").naturalWidth,
    near: document.querySelectorAll("#result .pictures img").length, said: box.textContent });
"""


@needs_browser
def test_a_model_of_numbers_shows_intervals_and_takes_numbers(numbers: Answers, tmp_path: Path) -> None:
    with serving(numbers, MEASURER) as viewer:
        seen = json.loads(unescape(title_of(viewer.address, tmp_path / "profile", 900, milliseconds=30_000)))
    assert seen["knows"] == "numbers from 0 to 30"
    assert " ± " in seen["value"]
    assert seen["region"].endswith("holds the number of 90 % of such images")
    assert (seen["near"], seen["where"]) == (7, 8)
    assert "standard deviations from what the other images say" in seen["said"]
    numbers.decisions.refresh()
    assert numbers.decisions.lines[WRONG]["label"] == "2.5"


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_serves_until_ctrl_c(clf: GPClassifier, tmp_path: Path) -> None:
    clf.save(tmp_path / "model.gp")
    command = [sys.executable, "-m", "cnngp", "view", str(tmp_path), "--no-browser", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{address}model", timeout=300) as answer:
            about = json.loads(answer.read())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert about["suspects"][0]["row"] == WRONG
    assert about["name"] == tmp_path.name  # of its folder, as every model of a run is called model.gp
    assert process.returncode == 0, err
    assert "decided                nothing" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.gp"], "nothing.gp"),
        (["digits.gp", "--labels", "mine.csv"], "is not a file of decisions"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    clf: GPClassifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    clf.save("digits.gp")
    Path("mine.csv").write_text("something else\n")
    assert run(["view", *words, "--no-browser"]) in (1, 2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
