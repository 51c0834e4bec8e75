"""Settings that every test shares."""

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "cnngp", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("cnngp")

# Verdicts of kernels that check themselves, also those of the processes that tests start, go with the test run.
_CACHE = tempfile.TemporaryDirectory(prefix="cnngp-tests-")
os.environ["CNNGP_CACHE"] = _CACHE.name

# Dask's profiler looks at all threads a hundred times a second. In Python before 3.11.9 and 3.12.3 a garbage collection
# at that moment stops the whole process for good (CPython issue 106883): about one run in a hundred of a busy worker.
os.environ["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"


# Jobs started in the background ignore Ctrl-C, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Tiny networks: threads only wait for one another."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
