"""What is Ray's own: lost actors, and who owns the connection."""

from __future__ import annotations

import socket

import pytest

from intact.errors import ClusterError, ModelError
from intact.search.trial import Ask, State
from intact.search.workers.pool import WorkerPool
from intact.search.workers.ray_ import RayLauncher
from tests.search.workers.fakes import KILL, OPENER, FakeTrialData

ray = pytest.importorskip("ray")


def ray_pool(trial_data: FakeTrialData, address: str | None = None, workers: int = 2) -> WorkerPool:
    return WorkerPool(RayLauncher(trial_data, workers, address, OPENER), workers)


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://[::1]:{}"])
def test_a_cluster_that_is_not_there(closed_port: int, address: str) -> None:
    place = address.format(closed_port)
    with ray_pool(FakeTrialData(), place) as pool:
        with pytest.raises(ClusterError, match="Ray cannot be reached at") as caught:
            list(pool.evaluate([Ask((1,))]))
        assert place in str(caught.value)
        assert "check the address" in str(caught.value)
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_lost_actor_and_a_connection_that_is_not_ours() -> None:
    ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=1)
    try:
        with ray_pool(
            FakeTrialData()
        ) as pool:  # two workers on one processor: they do not wait for ever
            results = list(pool.evaluate([Ask((1,)), Ask((KILL,)), Ask((2,)), Ask((3,))]))
            states = [each.state for each in results]
            assert states == [State.COMPLETE, State.FAILED, State.COMPLETE, State.COMPLETE]
            assert results[1].reason.startswith("the worker died (")
        damaged = ray_pool(FakeTrialData(opening="refuse"))
        with damaged, pytest.raises(ModelError, match="damaged; save it anew"):
            list(damaged.evaluate([Ask((1,))]))
        assert ray.is_initialized()
    finally:
        ray.shutdown()
