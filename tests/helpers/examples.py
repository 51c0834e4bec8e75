"""How many examples Hypothesis draws: a sixth of them by default, all in `make test-all`."""

import os

from hypothesis import settings

THOROUGH = os.environ.get("CNNGP_TESTS") == "all"


def examples(most: int) -> settings:
    """A decorator for `@given`; the examples are the same in every run."""
    return settings(max_examples=most if THOROUGH else -(-most // 6))
