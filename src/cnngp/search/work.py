"""The work of a search: from the number of a draw to its score, and the loop of one worker over draws.

Every worker takes the lowest draw that is neither finished nor claimed by another. Whoever is killed, its draw is free
again at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cnngp.gp.checks import MatrixError
from cnngp.kernel.engines.base import RangeError
from cnngp.network.layers import NetworkError
from cnngp.network.serialize import from_json

from .scoring import Problem, score
from .space import Draw, Space, SpaceError
from .study import Study, Trial, score_from

POLL_SECONDS = 0.3
_MOST_REDRAWS = 1000
# A draw may fail alone; this many in a row mean that the machine or the data is at fault.
_MOST_FAILURES = 3


@dataclass(frozen=True)
class Level:
    """Draws to score on one problem: new ones from a space, or networks that were drawn before."""

    path: Path
    identity: dict[str, Any]
    problem: Problem
    run: str
    """A name for this run: a draw that fails in it is not tried again in it."""
    draws: tuple[int, ...]
    space: Space
    seed: int
    networks: dict[int, str] | None = None
    content: str = ""
    """Of the problem, where networks are scored again: the study keeps their scores under it."""

    def trials(self, study: Study) -> list[Trial]:
        """What the study has of this level."""
        if self.networks is None:
            return study.trials()
        return [
            Trial(values["draw"], {}, values["network"], score_from(values))
            for key, values in study.notes("full").items()
            if key.startswith(f"{self.content}/")
        ]

    def done(self, study: Study) -> set[int]:
        if self.networks is None:
            return study.finished() | set(study.failures(self.run))
        return {trial.draw for trial in self.trials(study)}

    def claim_name(self, draw: int) -> str:
        return f"draw-{draw}" if self.networks is None else f"full-{self.content}-{draw}"

    def record(self, study: Study, done: Done) -> None:
        if self.networks is None:
            study.add(done.trial, done.draw)
        else:
            values = {"draw": done.trial.draw, "network": done.trial.network_json, **asdict(done.trial.score)}
            study.note("full", f"{self.content}/{done.trial.draw}", values)


@dataclass(frozen=True)
class Done:
    trial: Trial
    draw: Draw


def compute(problem: Problem, space: Space, seed: int, number: int, network_json: str | None = None) -> Done:
    """One draw from its numbers to its score. What makes no network on these images is drawn again, and counted."""
    if network_json is not None:
        found = score(from_json(network_json), problem)
        return Done(Trial(number, {}, network_json, found), Draw(seed, number))
    reasons: list[str] = []
    for attempt in range(_MOST_REDRAWS):
        draw = Draw(seed, number, attempt)
        try:
            network = space.network(draw)
            space.check_cost(network.shapes(problem.image_shape).cost)
            found = score(network, problem)
        except (NetworkError, RangeError, MatrixError) as error:
            reasons.append(f"{type(error).__name__}: {error}")
            continue
        return Done(Trial(number, draw.values, network.to_json(), found, tuple(reasons)), draw)
    raise NetworkError(
        f"{_MOST_REDRAWS:,} draws of the space {space.name} in a row make no network on images of "
        f"{' × '.join(map(str, problem.image_shape))}; the last: {reasons[-1]}"
    )


def claim(level: Level, study: Study) -> int | None:
    """The lowest draw that nobody is at, claimed; None where all are done or taken."""
    done = level.done(study)
    for number in level.draws:
        if number in done or not study.claims.take(level.claim_name(number)):
            continue
        if number not in level.done(study):  # finished by its holder between the look and the claim?
            return number
        study.claims.drop(level.claim_name(number))
    return None


def work(level: Level, study: Study, told: Callable[[], None], go_on: Callable[[], bool] = lambda: True) -> None:
    """Draw after draw until every one is done, by this worker or another."""
    failures = 0
    while go_on() and not set(level.draws) <= level.done(study):
        number = claim(level, study)
        if number is None:  # others are at the last ones; should one of them die, its draw is ours
            time.sleep(POLL_SECONDS)
            told()
            continue
        network = None if level.networks is None else level.networks[number]
        outcome = partial(compute, level.problem, level.space, level.seed, number, network)
        failures = keep(level, study, number, outcome, failures)
        told()


def keep(level: Level, study: Study, number: int, outcome: Callable[[], Done], failures: int) -> int:
    """Record what a claimed draw came to, or that it failed, and let go of it. Gives the failures in a row so far."""
    try:
        level.record(study, outcome())
    except SpaceError:  # every draw would fail of it
        raise
    except Exception as error:
        return _note_failure(level, study, number, error, failures)
    else:
        return 0
    finally:
        study.claims.drop(level.claim_name(number))


def _note_failure(level: Level, study: Study, number: int, error: Exception, before: int) -> int:
    """Goes on without the draw, unless too many have failed: raises then."""
    text = " ".join(f"draw {number}: {type(error).__name__}: {error}".split())
    if level.networks is None:
        study.fail(number, text, level.run)
        if before + 1 < _MOST_FAILURES:
            return before + 1
    raise RuntimeError(f"{text} ({study.path} keeps what is finished)") from error
