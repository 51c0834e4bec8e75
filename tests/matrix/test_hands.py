"""Work in the hands of workers, each thing that can happen to it on its own: clusters imitated by their answers."""

from __future__ import annotations

import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed")

from distributed import KilledWorker

from cnngp.matrix.cluster import hands as module
from cnngp.matrix.cluster import roster as roster_module
from cnngp.matrix.cluster.cluster import ClusterError
from cnngp.matrix.cluster.connection import while_true, within
from cnngp.matrix.cluster.hands import Hands, Task, compute_all
from cnngp.matrix.cluster.roster import Roster


class Future:
    """As the client sees one. What it calls back when it is over is called at once where it is over already."""

    def __init__(self, status: str, value: Any = None) -> None:
        self.status, self.value = status, value

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        if self.status != "pending":
            call(self)

    def result(self, timeout: float | None = None) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    def exception(self) -> Any:
        return self.value

    def cancel(self) -> None:
        self.status = "cancelled"


class Client:
    """A cluster of workers `about`, by address, on which a task becomes what `outcome` says."""

    status = "running"

    def __init__(self, about: dict[str, dict[str, Any]] | None = None) -> None:
        self.about = {"tcp://a": {}} if about is None else about
        self.scheduler = SimpleNamespace(address="tcp://s:1", identity=None)
        self.beats = 0
        self.given: list[tuple[Any, ...]] = []
        self.outcomes: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self.cancelled: list[Any] = []

    def sync(self, _: Any) -> Any:
        self.beats += 1
        usual = {"last_seen": self.beats, "status": "running", "nthreads": 1}
        return {"workers": {address: usual | about for address, about in self.about.items()}}

    def submit(self, function: Any, *arguments: Any, workers: list[str], **_: Any) -> Any:
        import cnngp

        if function is eval:
            return Future("finished", cnngp.__version__)
        self.given.append((function, *arguments, *workers))
        return Future("pending") if self.outcomes.empty() else self.outcomes.get()

    def cancel(self, futures: list[Any]) -> None:
        self.cancelled += futures


def hands_of(client: Any, data: Any = None) -> Hands:
    hands = Hands(Roster(client), lambda item: f"piece {item}", data)
    hands.workers()
    return hands


def test_work_that_kills_every_worker_is_blamed() -> None:
    client = Client()
    hands = hands_of(client)
    task = Task(7)
    for deaths, death in enumerate(("cancelled", "lost", "error"), start=1):
        client.outcomes.put(Future(death, KilledWorker("it", None, 3)))
        hands.give(task, "tcp://a", len, "x")
        assert hands.ended() == []
        assert (hands.again.popleft(), task.deaths, task.again, hands.running) == (task, deaths, True, {})
    client.outcomes.put(Future("finished", TimeoutError()))  # its answer died with its worker
    hands.give(task, "tcp://a", len, "x")
    [(over, outcome)] = hands.ended()
    assert over is task
    with pytest.raises(ClusterError, match=r"^4 workers died, one after the other, with piece 7 in hand; their"):
        outcome()
    assert not hands.again


@pytest.mark.parametrize("death", [TimeoutError(), None])
def test_a_worker_that_dies_with_its_results_is_reported_once(
    death: TimeoutError | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it had nothing else in hand, so that no later look at the workers would tell of it."""
    client = Client({"tcp://a": {}, "tcp://b": {}})
    hands = hands_of(client)
    for item in (1, 2):
        client.outcomes.put(Future("cancelled") if death is None else Future("finished", death))
        hands.give(Task(item), "tcp://b", len, item)
    del client.about["tcp://b"]
    assert hands.ended() == []
    assert [task.item for task in hands.again] == [1, 2]
    assert caplog.messages == ["worker tcp://b is gone; others do its work"]


def test_a_result_that_does_not_come_from_a_worker_that_is_there_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    client = Client()
    hands = hands_of(client)
    client.outcomes.put(Future("finished", TimeoutError()))
    hands.give(Task(1), "tcp://a", len, 1)
    assert hands.ended() == []
    assert caplog.messages == ["worker tcp://a does not hand over a result; others do its work"]


def test_results_and_errors_come_back() -> None:
    client = Client()
    hands = hands_of(client)
    client.outcomes.put(Future("finished", 3))
    client.outcomes.put(Future("error", ZeroDivisionError("no")))
    for item in ("one", "two"):
        hands.give(Task(item), "tcp://a", len, item)
    outcomes = {task.item: outcome for task, outcome in hands.ended()}
    assert outcomes["one"]() == 3
    with pytest.raises(ZeroDivisionError):
        outcomes["two"]()
    assert client.given == [(len, "one", "tcp://a"), (len, "two", "tcp://a")]


@pytest.mark.parametrize(
    ("about", "said", "deaths"),
    [
        (None, "is gone", 1),
        ({"status": "paused"}, "begins no more tasks", 0),
        ({"last_seen": 0}, "has not been heard of for", 0),
    ],
)
def test_what_a_lost_worker_had_in_hand_is_given_to_others(
    about: dict[str, Any] | None,
    said: str,
    deaths: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only a death is counted against the work."""
    client = Client({"tcp://a": {}, "tcp://b": {"last_seen": 0} if about == {"last_seen": 0} else {}})
    hands = hands_of(client)
    task = Task(1)
    hands.give(task, "tcp://b", len, "x")
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(roster_module, "SILENT_SECONDS", 0.0)
    if about is None:
        del client.about["tcp://b"]
    else:
        client.about["tcp://b"] = about
    hands.roster.there()
    monkeypatch.setattr(roster_module, "SILENT_SECONDS", 0.0 if about == {"last_seen": 0} else 60.0)
    hands._take_from_the_lost({"tcp://a"})
    assert f"worker tcp://b {said}" in caplog.text
    assert caplog.text.count("others do its work") == 1
    assert (task.deaths, task.again, list(hands.again), hands.running) == (deaths, True, [task], {})


def test_work_of_a_worker_that_refused_is_not_blamed() -> None:
    hands = hands_of(Client())
    task = Task(1, "tcp://a")
    hands.refuse(task, "it has no card")
    assert (task.deaths, list(hands.again)) == (0, [task])
    with pytest.raises(ClusterError, match="no worker at tcp://s:1 can do the work: it has no card"):
        hands.workers()


def test_first_places_come_before_second_ones() -> None:
    client = Client({"tcp://a": {}, "tcp://b": {"nthreads": 3}})
    hands = hands_of(client)
    assert hands.free() == ["tcp://a", "tcp://b", "tcp://a", "tcp://b"]
    assert hands.free(ahead=None) == ["tcp://a", "tcp://b", "tcp://b", "tcp://b"]
    hands.give(Task(0), "tcp://a", len, "x")
    assert hands.free() == ["tcp://b", "tcp://a", "tcp://b"]
    hands.drop()
    assert len(client.cancelled) == 1


def test_data_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies meanwhile is no reason to end; a failure each time is."""
    sent: list[Any] = []

    def scatter(data: Any, workers: list[str], broadcast: bool, hash: bool) -> Any:
        sent.append((data, workers, broadcast))
        raise OSError("no room")

    client = Client()
    client.scatter = scatter  # type: ignore[attr-defined]
    hands = hands_of(client, "images")
    tasks = [Task(k) for k in range(3)]
    for task in tasks:
        hands.give(task, "tcp://a", len)
    assert list(hands.again) == tasks
    with pytest.raises(ClusterError, match=r"^the data cannot be sent to the workers: no room$"):
        hands.give(Task(3), "tcp://a", len)
    assert sent == [("images", ["tcp://a"], True)] * 4  # to every worker: the death of one does not take them away


def test_data_are_not_waited_for_when_a_worker_that_they_go_to_is_lost() -> None:
    client = Client({"tcp://a": {}, "tcp://b": {}})
    waiting: queue.SimpleQueue[None] = queue.SimpleQueue()
    calls: list[list[str]] = []

    def scatter(data: Any, workers: list[str], broadcast: bool, hash: bool) -> Any:
        calls.append(workers)
        if "tcp://b" in workers:
            del client.about["tcp://b"]  # and Dask hangs
            waiting.get()
        return Future("finished")

    client.scatter = scatter  # type: ignore[attr-defined]
    hands = hands_of(client, "images")
    hands.give(Task(0), "tcp://a", len)
    assert len(hands.again) == 1
    hands.give(hands.again.popleft(), "tcp://a", len)
    assert calls == [["tcp://a", "tcp://b"], ["tcp://a"]]
    assert len(hands.running) == 1
    waiting.put(None)


@pytest.mark.parametrize("heard", [True, False])
def test_data_that_are_gone_are_sent_again(heard: bool) -> None:
    """The client hears that they are gone, or only that a task was cancelled because they are."""
    sent: list[Future] = []

    def scatter(*_: Any, **__: Any) -> Any:
        sent.append(Future("finished"))
        return sent[-1]

    client = Client()
    client.scatter = scatter  # type: ignore[attr-defined]
    hands = hands_of(client, "images")
    hands.give(Task(0), "tcp://a", len)
    hands.give(Task(1), "tcp://a", len)
    assert len(sent) == 1
    assert client.given[-1][1] is sent[-1]
    if heard:
        sent[0].status = "lost"
    else:
        future = next(iter(hands.running))
        future.status = "cancelled"
        hands._ended.put(future)
        assert hands.ended() == []
    hands.give(Task(2), "tcp://a", len)
    assert len(sent) == 2


@pytest.mark.parametrize("step", ["workers", "give", "ended"])
@pytest.mark.parametrize("how", ["broken", "closed"])
def test_a_connection_that_breaks_at_any_step(step: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", -1.0)
    client = Client()
    hands = hands_of(client)

    def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionResetError("in <TCP (closed)>")

    client.outcomes.put(Future("finished", ConnectionResetError("in <TCP (closed)>")))
    hands.give(Task(0), "tcp://a", len)
    if how == "broken":
        client.submit = client.sync = broken  # type: ignore[method-assign]
    else:
        client.status = "closed"
    steps: dict[str, Callable[[], Any]] = {
        "workers": hands.workers,
        "give": lambda: hands.give(Task(1), "tcp://a", len),
        "ended": hands.ended,
    }
    with pytest.raises(ClusterError, match=r"^the scheduler tcp://s:1 (is gone|does not answer any more)$"):
        steps[step]()


def test_all_is_computed_in_order_whatever_is_lost() -> None:
    client = Client({"tcp://a": {}, "tcp://b": {}})
    for future in (Future("cancelled"), Future("finished", 10), Future("finished", 20), Future("finished", 30)):
        client.outcomes.put(future)
    # The first is lost and comes last, so the third answer is that of the first piece again.
    assert compute_all(Roster(client), len, ["x", "y", "z"], named=str) == [30, 10, 20]
    client.outcomes.put(Future("error", ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        compute_all(Roster(client), len, ["x", "y", "z"], named=str)


def test_an_answer_that_never_comes() -> None:
    never: queue.SimpleQueue[None] = queue.SimpleQueue()
    with pytest.raises(TimeoutError):
        within(0.3, never.get)
    with pytest.raises(TimeoutError):
        while_true(lambda: False, never.get)
    assert within(5.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(5.0, lambda: 1 // 0)
    never.put(None)
    never.put(None)
