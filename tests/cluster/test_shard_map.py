"""Shards on local Ray: each is done once, whoever is lost, and errors end the work on one line."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from intact.cluster import Connection, ShardMap, actors, shard_map
from intact.cluster.folders import new_owner, temporary_folder
from intact.errors import ClusterError, DataError, UsageError
from tests.cluster.fakes import ALWAYS, ONCE, OPENER, REFUSE, WHO, FakeJob
from tests.clusters import local_cluster

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    with local_cluster():
        found = Connection("local")
        found.open()
        yield found
        found.close()
        assert ray.is_initialized()  # it is not ours


def done(shards: ShardMap, messages: list[bytes]) -> list[bytes]:
    return [reply for _, reply in shards.results(messages, lambda message, _: message)]


def test_a_shard_of_a_lost_worker_is_done_again(connection: Connection, tmp_path: Path) -> None:
    said = set()

    def message(item: bytes, hello: bytes) -> bytes:
        said.add(hello)
        return item

    with ShardMap(connection, FakeJob(tmp_path), OPENER) as shards:
        assert shards.workers == 2
        items = [b"a", ONCE, *(f"shard{n}".encode() for n in range(20))]
        found = dict(shards.results(items, message))
    assert (tmp_path / "died").exists()
    assert found == {item: item.upper() for item in items}
    assert said == {b"1 threads"}


def test_the_last_shard_of_the_only_worker_is_done_again(
    connection: Connection, tmp_path: Path
) -> None:
    """Nothing is left to take when the worker dies, and none is there but the one that starts."""
    with ShardMap(connection, FakeJob(tmp_path), OPENER, workers=1) as shards:
        assert done(shards, [b"a", ONCE]) == [b"A", ONCE.upper()]


def test_no_shard_waits_at_one_worker_while_another_starts(
    connection: Connection, tmp_path: Path
) -> None:
    with ShardMap(connection, FakeJob(tmp_path, "one late"), OPENER, workers=2) as shards:
        assert len(set(done(shards, [WHO, WHO]))) == 2


def test_shards_that_cost_several_workers_end_the_work(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_map, "_TRIES", 2)
    with (
        ShardMap(connection, FakeJob(tmp_path), OPENER, workers=1) as shards,
        pytest.raises(ClusterError, match="2 workers were lost at the same samples; the last: "),
    ):
        done(shards, [b"a", ALWAYS, b"b"])


def test_every_worker_lost(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_map, "_STARTS", 1)
    monkeypatch.setattr(actors, "new_owner", lambda: "deadbeef")
    with (
        ShardMap(connection, FakeJob(tmp_path, "die"), OPENER, workers=1) as shards,
        pytest.raises(ClusterError, match="every worker of the cluster was lost; the last: "),
    ):
        done(shards, [b"a"])
    with temporary_folder(new_owner()):  # whoever comes next removes what the worker left
        left = list(Path(tempfile.gettempdir()).glob("intact-cluster-deadbeef-*"))
    assert left == []


def test_a_worker_that_is_killed_while_it_loads_leaves_no_folder(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "new_owner", lambda: "beefbeef")

    def folders() -> list[Path]:
        return list(Path(tempfile.gettempdir()).glob("intact-cluster-beefbeef-*"))

    shards = ShardMap(connection, FakeJob(tmp_path, "wait"), OPENER, workers=1)
    shards._started()
    ends = time.monotonic() + 60
    while not folders() and time.monotonic() < ends:
        time.sleep(0.01)
    assert folders()
    shards.close()
    assert folders() == []


def test_errors_of_workers_are_raised_here(connection: Connection, tmp_path: Path) -> None:
    with (
        ShardMap(connection, FakeJob(tmp_path), OPENER, workers=1) as shards,
        pytest.raises(DataError, match="x: wrong; give another data") as caught,
    ):
        done(shards, [REFUSE])
    assert caught.value.with_flags.endswith("give another --data")


def test_workers_of_another_version_are_refused(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_map, "versions", lambda: {"intact": "0.0.9"})
    with (
        ShardMap(connection, FakeJob(tmp_path), OPENER, workers=1) as shards,
        pytest.raises(
            ClusterError, match=r"a worker has intact .*, this program 0\.0\.9"
        ) as caught,
    ):
        done(shards, [b"a"])
    assert "install intact 0.0.9 on every node" in str(caught.value)


def test_workers_that_do_not_start(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_map, "_PATIENCE", 0.5)

    class Other:
        def here(self) -> None: ...

    other = ray.remote(Other).options(num_cpus=2).remote()
    ray.get(other.here.remote())  # has all processors
    try:
        with (
            ShardMap(connection, FakeJob(tmp_path), OPENER, workers=1) as shards,
            pytest.raises(ClusterError, match="no worker has started"),
        ):
            done(shards, [b"a"])
    finally:
        ray.kill(other)


@pytest.mark.parametrize("workers", [0, -1, 1025])
def test_a_number_of_workers_out_of_range(
    connection: Connection, tmp_path: Path, workers: int
) -> None:
    with pytest.raises(UsageError, match="give 1 to 1024"):
        ShardMap(connection, FakeJob(tmp_path), OPENER, workers=workers)
