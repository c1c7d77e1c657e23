"""What is Ray's own: actors that are lost, other versions, and who owns the connection."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from intact.errors import ClusterError, UsageError
from intact.workers import pool as pools
from intact.workers import ray_
from intact.workers.job import new_owner, temporary_folder
from intact.workers.pool import Pool
from intact.workers.ray_ import Connection, RayLauncher
from tests.clusters import local_cluster
from tests.workers.jobs import ALWAYS, ONCE, WHO, FakeJob
from tests.workers.test_pool import done

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    with local_cluster():
        found = Connection("local")
        found.open()
        yield found
        found.close()
        assert ray.is_initialized()  # it is not ours


def pool_of(connection: Connection, job: FakeJob, workers: int = 2) -> Pool:
    made = Pool(RayLauncher(connection), job, workers, tries=2, ahead=2)
    made.start()
    return made


def test_a_task_of_a_lost_actor_is_done_again(connection: Connection, tmp_path: Path) -> None:
    hellos = set()

    def message(item: bytes, hello: bytes) -> bytes:
        hellos.add(hello)
        return item

    items = [b"a", ONCE, *(f"shard{n}".encode() for n in range(20))]
    with pool_of(connection, FakeJob(tmp_path)) as pool:
        found = dict(pool.results(items, message))
    assert (tmp_path / "died").exists()
    assert found == {item: item.upper() for item in items}
    assert hellos == {b"1 threads"}


def test_no_task_waits_at_one_worker_while_another_starts(
    connection: Connection, tmp_path: Path
) -> None:
    with pool_of(connection, FakeJob(tmp_path, "one late")) as pool:
        assert len(set(done(pool, [WHO, WHO]))) == 2


def test_more_workers_than_processors_do_not_wait_for_ever(
    connection: Connection, tmp_path: Path
) -> None:
    with pool_of(connection, FakeJob(tmp_path), workers=3) as pool:
        reasons = [str(reply) for _, reply in pool.results([ALWAYS], lambda item, _: item)]
    assert reasons[0].startswith("the worker died (")


def test_no_actor_starts(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_STARTS", 1)
    monkeypatch.setattr(ray_, "new_owner", lambda: "deadbeef")
    with (
        pool_of(connection, FakeJob(tmp_path, "die"), 1) as pool,
        pytest.raises(ClusterError, match=r"workers do not start, 1 times; .*the nodes"),
    ):
        done(pool, [b"a"])
    with temporary_folder(new_owner()):  # whoever comes next removes what the worker left
        left = list(Path(tempfile.gettempdir()).glob("intact-workers-deadbeef-*"))
    assert left == []


def test_an_actor_that_is_killed_while_it_loads_leaves_no_folder(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_, "new_owner", lambda: "beefbeef")

    def folders() -> list[Path]:
        return list(Path(tempfile.gettempdir()).glob("intact-workers-beefbeef-*"))

    pool = pool_of(connection, FakeJob(tmp_path, "wait"), 1)
    ends = time.monotonic() + 60
    while not folders() and time.monotonic() < ends:
        time.sleep(0.01)
    assert folders()
    pool.close()
    assert folders() == []


def test_actors_of_another_version_are_refused(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_, "versions", lambda: {"intact": "0.0.9"})
    with (
        pool_of(connection, FakeJob(tmp_path), 1) as pool,
        pytest.raises(
            ClusterError, match=r"a worker has intact .*, this program 0\.0\.9"
        ) as caught,
    ):
        done(pool, [b"a"])
    assert "install intact 0.0.9 on every node" in str(caught.value)


def test_actors_that_find_no_place(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RayLauncher, "patience", 0.5)

    class Other:
        def here(self) -> None: ...

    other = ray.remote(Other).options(num_cpus=2).remote()
    ray.get(other.here.remote())  # has all processors
    try:
        with (
            pool_of(connection, FakeJob(tmp_path), 1) as pool,
            pytest.raises(ClusterError, match="no worker has started"),
        ):
            done(pool, [b"a"])
    finally:
        ray.kill(other)


@pytest.mark.parametrize("workers", [0, -1, 1025])
def test_a_number_of_workers_out_of_range(
    connection: Connection, tmp_path: Path, workers: int
) -> None:
    with pytest.raises(UsageError, match="give 1 to 1024"):
        Pool(RayLauncher(connection), FakeJob(tmp_path), workers)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://[::1]:{}"])
def test_a_cluster_that_is_not_there(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place = address.format(taken.getsockname()[1])
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # of the fixture's
    with (
        Pool(RayLauncher(Connection(place)), FakeJob(tmp_path), 2) as pool,
        pytest.raises(ClusterError, match="Ray cannot be reached at") as caught,
    ):
        done(pool, [b"a"])
    assert place in str(caught.value)
    assert "check the address" in str(caught.value)
