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
from typing import Any

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


def test_pixels_are_of_the_training_images_scale_and_ink(answers: Answers, tmp_path: Path) -> None:
    told = answers.about()
    assert told["about"].startswith("200 training images of 1 × 8 × 8, 10 classes, leave-one-out error ")
    assert told["light_on_dark"]
    assert 0.8 < told["ink"] <= 1.0  # digits fill their frames
    inverse = GPClassifier(NET, noise=0.1, device="cpu").fit(255.0 * (1.0 - DIGITS.X), DIGITS.y)
    scaled = Answers(inverse, "m.gp", tmp_path / "d.csv", largest=255)
    told = scaled.about()
    assert not told["light_on_dark"]
    assert 0.8 < told["ink"] <= 1.0
    found = [scaled.look(png(1.0 - x))["class"] for x in DIGITS.X_test[:20]]
    assert found == [str(c) for c in inverse.predict(255.0 * (1.0 - DIGITS.X_test[:20]))]


def test_a_number_gets_an_interval_and_the_images_most_like_it(numbers: Answers) -> None:
    reg, x = numbers.model, DIGITS.X_test[:1]
    seen = numbers.look(png(x[0]))
    shown = (np.floor(255 * x) / 255).astype(np.float32)
    assert seen["value"] == pytest.approx(reg.predict(shown)[0], rel=1e-5)
    assert seen["interval"] == pytest.approx(reg.predict_interval(shown, coverage=0.9)[0], rel=1e-5)
    assert 1 - seen["near"][0]["share"] == pytest.approx(seen["novelty"], abs=1e-6)
    told = numbers.about()
    assert (told["classes"], told["knows"], len(told["examples"])) == ([], "numbers from 0 to 30", 5)
    assert told["about"].endswith(f" of 1 × 8 × 8, one number each, leave-one-out error {reg.loo_error_:.4g}")
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
    viewer: Viewer, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """An answer's status and content."""
    connection = http.client.HTTPConnection(*viewer.server_address[:2], timeout=300)
    with closing(connection):
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
        return answer.status, answer.read()


def test_requests_and_who_may_make_them(answers: Answers) -> None:
    """Only this machine, and of it only who knows the token and comes from the page itself."""
    with serving(answers) as viewer, serving(answers) as other:
        assert viewer.token != other.token
        assert viewer.address == f"http://127.0.0.1:{viewer.server_port}/{viewer.token}/"
        here, elsewhere, picture = f"127.0.0.1:{viewer.server_port}", "evil.example", png(DIGITS.X_test[0])
        requests: list[tuple[str, str, bytes | None, dict[str, str], int]] = [
            ("GET", "/model", None, {}, 200),
            ("GET", "/model", None, {"Host": f"localhost:{viewer.server_port}"}, 200),
            ("GET", "/model", None, {"Host": f"{elsewhere}:{viewer.server_port}"}, 403),
            ("POST", "/look", picture, {"Origin": f"http://{here}"}, 200),
            ("POST", "/look", picture, {"Origin": f"http://{elsewhere}"}, 403),
            ("POST", "/decide", b"{}", {"Origin": "null"}, 403),
            ("GET", "/image/3", None, {}, 200),
            ("GET", "/labels.csv", None, {}, 200),
            *(("GET", path, None, {}, 404) for path in ("/etc/passwd", "/image/100000", "/image/-1")),
            ("POST", "/elsewhere", b"", {}, 404),
            ("POST", "/look", b"no picture", {}, 400),
            *(("POST", "/decide", body, {}, 400) for body in (b"{not json", b"[" * 100_000, b'{"row": [7]}')),
            ("POST", "/decide", b'{"row": true, "decision": "keep"}', {}, 400),
            ("POST", "/decide", b'{"row": 7, "decision": ["keep"]}', {}, 400),
            ("POST", "/look", b"", {"Content-Length": str(10**10)}, 413),
        ]
        for method, path, body, headers, status in requests:
            found, content = ask(viewer, method, f"/{viewer.token}{path}", body, headers)
            assert found == status, (method, path, body)
            assert status == 200 or json.loads(content)["error"]
        whole = ("/", "/model", "/image/0", "/labels.csv", "//", "*", f"/{viewer.token[:-1]}/", "/%C3%A9/")
        for path in (*whole, f"/{other.token}/model"):
            status, content = ask(viewer, "GET", path)
            assert status == 403
            assert b"open the whole address" in content
        assert ask(viewer, "POST", "/decide", b"{}")[0] == 403
        page = ask(viewer, "GET", f"/{viewer.token}/")[1].decode()
    assert '<link rel="icon" href="data:' in page  # without one a browser asks for it, without the token
    assert not re.search(r"""["'(]/\w""", page)  # every address in it is relative to the one with the token


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
        assert ask(viewer, "GET", f"/{viewer.token}/model")[0] == 200
        assert stuck.recv(1) == b""  # closed, when its time is up


def test_connections_that_ask_nothing_are_bounded_and_keep_nobody_out(answers: Answers) -> None:
    before = threading.active_count()
    with serving(answers) as viewer, ExitStack() as stack:
        for k in range(4 * server.MOST_CONNECTIONS):
            idle = stack.enter_context(socket.create_connection(viewer.server_address[:2], timeout=30))
            if k % 2:
                idle.sendall(half_a_request(viewer))
        assert ask(viewer, "GET", f"/{viewer.token}/model")[0] == 200
        until = time.monotonic() + 10.0  # threads of connections that were closed end when they are next run
        while threading.active_count() - before > server.MOST_CONNECTIONS + 1 and time.monotonic() < until:
            time.sleep(0.05)
        assert threading.active_count() - before <= server.MOST_CONNECTIONS + 1


def test_a_model_of_features_shows_their_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In its report and in the viewer, also from a file; a new picture has no features here."""
    rows, test = (X.mean(2)[:, 0] for X in (DIGITS.X, DIGITS.X_test))
    data = replace(DIGITS, X=rows, X_test=test, pictures=DIGITS.X, pictures_test=DIGITS.X_test)
    found = report_run(data, GPClassifier("dense_nngp", noise="loo", device="cpu"), tmp_path)
    assert "\nengine                 cpu (" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gp", "report.html", "results.json"]
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


def seen_by(answers: Answers, script: str, folder: Path, width: int) -> dict[str, Any]:
    """What a person who does what the script says has seen at the end."""
    with serving(answers, script) as viewer:
        title = title_of(viewer.address, folder / "profile", width, milliseconds=30_000, dark=True)
    return dict(json.loads(unescape(title)))


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
    seen = seen_by(answers, PERSON, tmp_path, width=500)
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
    seen = seen_by(Answers(clf, "photographs.gp", tmp_path / "d.csv"), VISITOR, tmp_path, width=1200)
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
    seen = seen_by(numbers, MEASURER, tmp_path, width=900)
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


def test_mistakes_are_one_line(
    clf: GPClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    clf.save("digits.gp")
    Path("mine.csv").write_text("something else\n")
    for words, message in (("nothing.gp", "nothing.gp"), ("digits.gp --labels mine.csv", "is not a file of decisions")):
        assert run(["view", *words.split(), "--no-browser"]) in (1, 2)
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
