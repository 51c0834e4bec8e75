"""`cnngp view`: its answers, its file of decisions, who may ask it, and the page in a real browser."""

from __future__ import annotations

import csv
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
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cnngp import Conv, Dense, GPClassifier, GPRegressor, ReLU, Sequential, datasets
from cnngp.cli import run
from cnngp.report import apply_decisions
from cnngp.report.viewer import decisions as decisions_module
from cnngp.report.viewer import server
from cnngp.report.viewer.answers import Answers
from cnngp.report.viewer.decisions import Decisions
from cnngp.report.viewer.server import Viewer
from helpers.browser import needs_browser, title_of

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DIGITS = datasets.digits().take(200, 50)
WRONG = 7


@pytest.fixture(scope="module")
def clf() -> GPClassifier:
    y = DIGITS.y.copy()
    y[WRONG] = (y[WRONG] + 5) % 10
    return GPClassifier("small_cnn", device="cpu").fit(DIGITS.X, y)


@pytest.fixture
def answers(clf: GPClassifier, tmp_path: Path) -> Answers:
    return Answers(clf, "digits.gp", Decisions(tmp_path / "digits.labels.csv"), suspects=20)


@contextmanager
def serving(answers: Answers, script: str = "") -> Iterator[Viewer]:
    with Viewer(answers) as viewer:
        viewer.page = viewer.page.replace(b"</body>", f"<script>{script}</script></body>".encode())
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
        assert seen["novelty"] == pytest.approx(clf.novelty(shown)[0], abs=1e-6)
        assert all(v["share"] > 0 for v in seen["for"])
        assert all(v["share"] < 0 for v in seen["against"])
        json.dumps(seen, allow_nan=False)


def test_the_models_scale_of_pixels_is_used(clf: GPClassifier, tmp_path: Path) -> None:
    bytes_ = GPClassifier(NET, device="cpu").fit(255 * DIGITS.X, DIGITS.y)
    answers = Answers(bytes_, "bytes.gp", Decisions(tmp_path / "d.csv"), largest=255)
    found = [answers.look(png(x))["class"] for x in DIGITS.X_test[:20]]
    assert found == [str(c) for c in bytes_.predict(255 * DIGITS.X_test[:20])]


def test_what_is_no_picture_is_refused(answers: Answers) -> None:
    with pytest.raises(ValueError, match="not a picture that can be read"):
        answers.look(b"not a picture")


def test_models_that_cannot_be_shown(clf: GPClassifier, tmp_path: Path) -> None:
    decisions = Decisions(tmp_path / "d.csv")
    flat = GPClassifier(device="cpu").fit(DIGITS.X.reshape(200, -1), DIGITS.y)
    with pytest.raises(ValueError, match="not on pictures"):
        Answers(flat, "flat.gp", decisions)
    several = GPClassifier(NET, device="cpu").fit(DIGITS.X, np.eye(10, dtype=int)[DIGITS.y])
    with pytest.raises(ValueError, match="several labels"):
        Answers(several, "several.gp", decisions)


def test_a_model_through_inducing_images_shows_no_suspects(tmp_path: Path) -> None:
    clf = GPClassifier(NET, device="cpu", inducing=50).fit(DIGITS.X, DIGITS.y)
    answers = Answers(clf, "inducing.gp", Decisions(tmp_path / "d.csv"))
    assert answers.model()["suspects"] == []
    assert "inducing images" in answers.model()["about_suspects"]
    assert all(v["row"] < answers.images == 50 for v in answers.look(png(DIGITS.X_test[0]))["for"])


@pytest.mark.filterwarnings("ignore:noise='loo' chose the most noise")
def test_a_model_that_is_no_better_than_guessing_suspects_no_label(tmp_path: Path) -> None:
    X = np.random.default_rng(0).random((60, 1, 8, 8))
    clf = GPClassifier(NET, device="cpu", noise="loo").fit(X, np.arange(60) % 3)
    told = Answers(clf, "noise.gp", Decisions(tmp_path / "d.csv")).model()
    assert told["suspects"] == []
    assert told["about_suspects"].startswith("No better than guessing")
    assert told["about"].endswith("not clearly better than guessing")


# ---- decisions ------------------------------------------------------------------------------------------------------


def test_decisions_are_written_at_once_and_read_again(answers: Answers) -> None:
    assert answers.suspects[0]["row"] == WRONG
    rows = [s["row"] for s in answers.suspects]
    answers.decide({"row": rows[0], "decision": "relabel", "label": answers.suspects[0]["proposed"]})
    answers.decide({"row": rows[1], "decision": "drop"})
    answers.decide({"row": rows[2], "decision": "keep"})
    with answers.decisions.path.open(newline="") as file:
        found = {int(line["row"]): line for line in csv.DictReader(file)}
    assert found[WRONG]["decision"] == "relabel"
    assert found[WRONG]["label"] == str(DIGITS.y[WRONG])
    assert found[rows[1]]["label"] == ""
    assert found[rows[2]]["label"] == found[rows[2]]["given"]
    again = Answers(answers.clf, "digits.gp", Decisions(answers.decisions.path), suspects=20)
    assert [s["decision"] for s in again.model()["suspects"][:4]] == ["relabel", "drop", "keep", None]
    again.decide({"row": rows[1], "decision": None})  # taken back
    assert len(Decisions(answers.decisions.path)) == 2


def refitted(X: np.ndarray, y: np.ndarray, names: np.ndarray | None = None) -> GPClassifier:
    return GPClassifier("small_cnn", device="cpu").fit(X, y, names=names)


def decided(answers: Answers) -> list[str | None]:
    return [s["decision"] for s in answers.model()["suspects"]]


@pytest.fixture
def two_decided(answers: Answers) -> Answers:
    answers.decide({"row": WRONG, "decision": "relabel", "label": answers.suspects[0]["proposed"]})
    answers.decide({"row": answers.suspects[1]["row"], "decision": "drop"})
    return answers


def test_decisions_about_other_images_are_set_aside_and_not_put_on_those_of_a_new_fit(two_decided: Answers) -> None:
    path = two_decided.decisions.path
    before = path.read_text()
    y = np.asarray(two_decided.clf.y_)
    other = refitted(DIGITS.X[:, :, ::-1].copy(), y)  # other pictures with the same labels in the same rows
    with pytest.warns(UserWarning, match=r"^2 of 2 decisions in .* are about other images or labels than this") as told:
        again = Answers(other, "digits.gp", Decisions(path), suspects=20)
    assert len(told) == 1
    assert decided(again) == [None] * 20
    assert len(again.decisions) == 0
    assert path.with_name("digits.labels.csv.old-1").read_text() == before
    assert not path.exists()
    again.decide({"row": again.suspects[0]["row"], "decision": "keep"})
    with pytest.warns(UserWarning, match=r"1 of 1 decisions in .* is about .* is now .*digits\.labels\.csv\.old-2"):
        Answers(two_decided.clf, "digits.gp", Decisions(path))
    assert path.with_name("digits.labels.csv.old-1").read_text() == before


def test_decisions_follow_their_images_when_one_more_shifts_the_rows(two_decided: Answers) -> None:
    path, second = two_decided.decisions.path, two_decided.suspects[1]["row"]
    y = np.asarray(two_decided.clf.y_)
    more = refitted(np.concatenate([DIGITS.X_test[:1], DIGITS.X]), np.concatenate([DIGITS.y_test[:1], y]))
    again = Answers(more, "digits.gp", Decisions(path), suspects=20)
    assert [again.decisions.action(row) for row in (WRONG + 1, second + 1, WRONG, second)] == [
        *("relabel", "drop", None, None)
    ]
    lines = csv.DictReader(path.read_text().splitlines())
    assert [int(line["row"]) for line in lines] == sorted([WRONG + 1, second + 1])
    assert sorted(p.name for p in path.parent.iterdir()) == [f".{path.name}.lock", path.name]


def test_a_decision_about_another_label_of_the_image_is_set_aside_alone(two_decided: Answers) -> None:
    """As after the decisions were applied, and the model fitted again."""
    path, second = two_decided.decisions.path, two_decided.suspects[1]["row"]
    y = np.asarray(two_decided.clf.y_).copy()
    y[WRONG] = DIGITS.y[WRONG]
    with pytest.warns(UserWarning, match="1 of 2 decisions"):
        again = Answers(refitted(DIGITS.X, y), "digits.gp", Decisions(path), suspects=20)
    assert again.decisions.action(WRONG) is None
    assert again.decisions.action(second) == "drop"
    assert len(Decisions(path)) == 1


def test_two_viewers_and_a_person_with_a_spreadsheet_keep_each_others_decisions(answers: Answers) -> None:
    path, rows = answers.decisions.path, [s["row"] for s in answers.suspects]
    other = Answers(answers.clf, "digits.gp", Decisions(path), suspects=20)
    answers.decide({"row": rows[0], "decision": "drop"})
    other.decide({"row": rows[1], "decision": "keep"})
    answers.decide({"row": rows[2], "decision": "keep"})
    assert decided(answers) == decided(other) == ["drop", "keep", "keep"] + [None] * 17
    text = path.read_text()
    path.write_text("\ufeff" + text.replace("drop", "Keep").replace(",", ";").replace("\n", "\r\n"), encoding="utf-8")
    assert other.decide({"row": rows[1], "decision": None})["decisions"] == 2
    assert decided(answers) == ["keep", None, "keep"] + [None] * 17
    path.write_text("something else")
    with pytest.raises(ValueError, match="is not a file of decisions"):
        answers.decide({"row": rows[3], "decision": "drop"})
    assert path.read_text() == "something else"


def test_decisions_of_threads_are_all_kept(answers: Answers) -> None:
    """Each with a file of decisions of its own, as several viewers have."""
    rows = [s["row"] for s in answers.suspects]
    viewers = [Answers(answers.clf, "m", Decisions(answers.decisions.path), suspects=20) for _ in range(4)]

    def work(k: int) -> None:
        for row in rows[k::4]:
            viewers[k].decide({"row": row, "decision": "drop"})

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decided(answers) == ["drop"] * 20


def test_a_decision_that_was_not_written_is_not_kept(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [s["row"] for s in answers.suspects]
    answers.decide({"row": rows[0], "decision": "keep"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as during:
        during.setattr(decisions_module, "write_atomically", full)
        with pytest.raises(OSError, match="No space left"):
            answers.decide({"row": rows[1], "decision": "drop"})
        with pytest.raises(OSError, match="No space left"):
            answers.decide({"row": rows[0], "decision": None})
    assert decided(answers)[:2] == ["keep", None]
    answers.decide({"row": rows[2], "decision": "keep"})
    assert decided(answers)[:3] == ["keep", None, "keep"]


STRANGE = ["a\rb.png", "caf\udce9.png", "=cmd|' /C calc'!A0", "+1+1", "-x", "@x", "'=x", "'x", "a\nb", "\x1b[2J", '","',
           "naïve ü.png", "\\x0d", "-1", "\u202egnp.exe", "\x00", " x ", ";", "\ud800"]  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_any_name_is_written_so_that_every_reader_gets_it_back(answers: Answers, name: str, tmp_path: Path) -> None:
    rows = [s["row"] for s in answers.suspects[:2]]
    answers.decisions.decide(
        rows[0], name, str(answers.clf.y_[rows[0]]), name, "keep", "", answers._images.fingerprint(rows[0])
    )
    answers.decide({"row": rows[1], "decision": "drop"})  # a later one is not in its way
    again = Decisions(answers.decisions.path)
    assert again._rows[rows[0]]["name"] == name
    text = answers.decisions.path.read_text(encoding="utf-8-sig")
    head, line, _ = csv.reader(io.StringIO(text, newline=""))  # as a spreadsheet reads it
    assert len(text.splitlines()) == 3
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", text)
    cell = line[head.index("name")]
    assert cell[0] not in "=+-@" or cell == "-1"


def test_decisions_are_applied_to_the_images_that_they_are_about(two_decided: Answers) -> None:
    path, second = two_decided.decisions.path, two_decided.suspects[1]["row"]
    y = np.asarray(two_decided.clf.y_)
    expected = y.copy()
    expected[WRONG] = DIGITS.y[WRONG]
    X, labels = apply_decisions(path, DIGITS.X, y)
    np.testing.assert_array_equal(labels, np.delete(expected, second))
    np.testing.assert_array_equal(X, np.delete(DIGITS.X, second, axis=0))
    order = np.random.default_rng(0).permutation(200)  # in another order and another type
    _, shuffled = apply_decisions(path, DIGITS.X[order].astype(np.float64), y[order])
    np.testing.assert_array_equal(shuffled, expected[order[order != second]])


def test_decisions_are_not_applied_to_other_images_or_labels(two_decided: Answers, tmp_path: Path) -> None:
    path, y = two_decided.decisions.path, np.asarray(two_decided.clf.y_)
    for X, labels in ((DIGITS.X[:, :, ::-1], y), (DIGITS.X, DIGITS.y)):
        with pytest.raises(ValueError, match="is about another image or label than those that were given"):
            apply_decisions(path, X, labels)
    with pytest.raises(ValueError, match="no such file of decisions"):
        apply_decisions(tmp_path / "none.csv", DIGITS.X, y)
    with pytest.raises(ValueError, match="200 images, 100 labels"):
        apply_decisions(path, DIGITS.X, y[:100])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"row": 199999, "decision": "keep"}, "row of a suspect"),
        ([], "row of a suspect"),
        ({"row": WRONG, "decision": "burn"}, "expected one of keep, relabel, drop"),
        ({"row": WRONG, "decision": "relabel", "label": "cat"}, "not a class"),
    ],
)
def test_decisions_that_cannot_be(answers: Answers, asked: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        answers.decide(asked)
    assert not answers.decisions.path.exists()


@pytest.mark.parametrize(
    "content", ["a,b\n1,2\n", "row,name,given,proposed,decision,label,image\nx,,,,keep,,\n", "\x00\xff", ""]
)
def test_a_file_of_something_else_is_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match="is not a file of decisions"):
        Decisions(path)
    assert path.read_text(encoding="latin-1") == content


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
        assert threading.active_count() - before <= server.MOST_CONNECTIONS + 1


# ---- the page -------------------------------------------------------------------------------------------------------

# A person draws a stroke, drops a file, and decides about three labels. What was seen goes into the title.
PERSON = """
const wait = ms => new Promise(done => setTimeout(done, ms));
const until = async test => { for (let i = 0; i < 200 && !test(); i++) await wait(50); };
addEventListener("load", async () => {
  await until(() => model);
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
  const dropped = $("class").textContent, novelty = $("novelty").textContent;
  $("tab-labels").click();
  const press = async (row, action) => {
    [...document.querySelectorAll(".suspect")[row].querySelectorAll("button")][action].click();
    await until(() => document.querySelectorAll(".suspect.done").length > row);
  };
  await press(0, 1); await press(1, 2); await press(2, 0);
  const wide = document.documentElement.scrollWidth > innerWidth;
  document.title = JSON.stringify({ drawn, dropped, bars, novelty, wide, progress: $("progress").textContent,
    background: getComputedStyle(document.body).backgroundColor });
});
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
    assert seen["wide"] is False
    assert "3 decided" in seen["progress"]
    rows = [s["row"] for s in answers.suspects[:3]]
    assert [answers.decisions.action(row) for row in rows] == ["relabel", "drop", "keep"]
    assert answers.decisions.label(WRONG) == str(DIGITS.y[WRONG])


# One who has photographs sees what the model knows, where to drop one, and tries an example.
VISITOR = """
const wait = ms => new Promise(done => setTimeout(done, ms));
const until = async test => { for (let i = 0; i < 200 && !test(); i++) await wait(50); };
addEventListener("load", async () => {
  await until(() => model);
  const before = { hint: $("hint").offsetHeight > 0, canvas: $("canvas").offsetHeight > 0,
    classes: $("classes").textContent, examples: document.querySelectorAll("#examples img").length };
  document.querySelector("#examples button").click();
  await until(() => $("class"));
  await until(() => $("canvas").offsetHeight > 0);
  const shape = $("canvas").offsetWidth / $("canvas").offsetHeight;
  document.title = JSON.stringify({ ...before, shape, class: $("class").textContent, hidden: $("hint").hidden,
    wide: document.documentElement.scrollWidth > innerWidth });
});
"""


@needs_browser
def test_a_model_of_photographs_opens_with_its_classes_a_place_to_drop_and_examples(tmp_path: Path) -> None:
    X = np.random.default_rng(0).random((20, 3, 6, 9)).astype(np.float32)
    X[:10, 0] += 1.0
    clf = GPClassifier(NET, device="cpu").fit(X / 2, np.repeat(["red fox", "<sea>"], 10))
    with serving(Answers(clf, "photographs.gp", Decisions(tmp_path / "d.csv")), VISITOR) as viewer:
        seen = json.loads(unescape(title_of(viewer.address, tmp_path / "profile", 1200, milliseconds=30_000)))
    assert seen.pop("shape") == pytest.approx(9 / 6, rel=0.02)
    assert seen == {"hint": True, "canvas": False, "classes": "<sea>, red fox", "examples": 2, "class": "<sea>",
                    "hidden": True, "wide": False}  # fmt: skip


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_serves_until_ctrl_c(clf: GPClassifier, tmp_path: Path) -> None:
    clf.save(tmp_path / "digits.gp")
    command = [sys.executable, "-m", "cnngp", "view", str(tmp_path / "digits.gp"), "--no-browser", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{address}model", timeout=300) as answer:
            suspects = json.loads(answer.read())["suspects"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert suspects[0]["row"] == WRONG
    assert process.returncode == 0, err
    assert "decided                nothing" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.gp"], "nothing.gp"),
        (["numbers.gp"], "holds a GPRegressor"),
        (["digits.gp", "--labels", "mine.csv"], "is not a file of decisions"),
        (["digits.gp", "--port", "99999"], "port"),
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
    GPRegressor(NET, device="cpu").fit(DIGITS.X, DIGITS.y.astype(float)).save("numbers.gp")
    Path("mine.csv").write_text("something else\n")
    assert run(["view", *words, "--no-browser"]) in (1, 2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
