"""`verify` on a cluster: shards of the samples are compared by workers, and what was found merged.

Counts are integers and sums exact, so it is the same as on one machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import onnx_ir as ir

from intact.analyze.verification.subject import Subject, batches_of, chosen_format
from intact.calibrate.shards import SampleMap
from intact.calibrate.shards.messages import Source, decode_shard, encode
from intact.calibrate.shards.reading import ShardReader
from intact.calibrate.shards.worker import mapped
from intact.data.stream import Samples
from intact.errors import ClusterError
from intact.formats.base.format import Deployed
from intact.formats.base.report import Verification
from intact.graph.files.limits import limit_of, raised_limits
from intact.numerics.error_sums import ErrorSums, SavedSums
from intact.results.result import Result
from intact.targets import Target

_RESULT, _JOB = "result", "job.msgpack"
"""What a saved job consists of, beside the file of others."""
_OPENER = f"{__name__}:open_verifier"


class _Job(msgspec.Struct, frozen=True):
    source: Source
    target: Target
    deployed: str
    kernels: str | None
    size: int
    file: str
    raise_limits: int


class _Found(msgspec.Struct, frozen=True):
    """What a worker found in a shard, with the sums of each output."""

    verification: Verification
    sums: tuple[SavedSums, ...]


_decode_job = msgspec.msgpack.Decoder(_Job).decode
_decode_found = msgspec.msgpack.Decoder(_Found).decode


class VerificationJob(NamedTuple):
    """What workers load.

    Attributes:
        subject: What is verified.
        deployed: The name of its format.
        kernels: As of `intact.analyze.verification.compare.compare`.
        size: Samples in a batch.
    """

    subject: Subject
    deployed: str
    kernels: str | None
    size: int

    def saved(self, source: Source) -> _Saved:
        """Return the files of it, for samples of a source."""
        file = "" if self.subject.file is None else f"deployed{self.subject.file.suffix}"
        target, name = self.subject.plan.target, self.deployed
        message = _Job(source, target, name, self.kernels, self.size, file, limit_of(1))
        return _Saved(self.subject, message)


class _Saved(NamedTuple):
    subject: Subject
    message: _Job

    def save(self, folder: Path) -> None:
        """Write them to a folder."""
        if self.subject.result is not None:
            replace(self.subject.result).save(folder / _RESULT)  # a copy: it stays where it is
        elif self.subject.file is not None:
            shutil.copyfile(self.subject.file, folder / self.message.file)
        (folder / _JOB).write_bytes(encode(self.message))


def compare_on(
    cluster: SampleMap, job: VerificationJob, samples: Samples, *, threads: int = 0
) -> Verification:
    """Compare what was deployed with its plan on a cluster.

    Args:
        cluster: Whose workers do it.
        job: What they load.
        samples: The inputs; their labels are known afterwards.
        threads: Of each worker; 0 divides the processors of the cluster.

    Raises:
        ClusterError: The cluster cannot be reached, has other versions, or loses its workers; or
            these have different runtimes or processors.
        UsageError: The samples have an order, or can be read once only.
        IntactError: The runtime refuses the model, or is not installed there.
    """
    # A shard loads the model in its runtime, so there are few.
    replies = cluster.replies_in_order(
        samples, job.size, job.saved, _OPENER, threads=threads, shards=1
    )
    merged, *others = (_verification_of(reply) for reply in replies)
    for each in others:
        _refuse_others(merged, each)
        merged.join(each)
    return merged


def _refuse_others(one: Verification, other: Verification) -> None:
    """Refuse results of two runtimes: a verification is of one, on one kind of processor."""
    if (one.runtime, one.cpu) == (other.runtime, other.cpu):
        return
    names = " and ".join(f"{each.runtime} on {each.cpu.name}" for each in (one, other))
    raise ClusterError(
        f"the workers are not alike ({names}): a verification is of one runtime and processor",
        remedy="give --cluster one kind of worker, or leave it out",
    )


def _verification_of(reply: bytes) -> Verification:
    message = _decode_found(reply)
    found = message.verification
    for output, sums in zip(found.summed, message.sums, strict=True):
        output.sums = ErrorSums.of(sums)
    return found


def open_verifier(folder: Path, threads: int) -> Callable[[bytes], bytes]:
    """Load a job; an opener of `intact.cluster.ShardMap`."""
    job = _decode_job((folder / _JOB).read_bytes())
    with raised_limits(job.raise_limits):
        subject = (
            Subject.of_file(folder / job.file, job.target)
            if job.file
            else Subject.of_result(Result.load(folder / _RESULT))
        )
    mapped(subject.plan.graph.model)
    exported = subject.exports[job.deployed]
    if isinstance(model := getattr(exported, "model", None), ir.Model):
        mapped(model)
    _, verify = chosen_format(subject.exports, job.deployed)
    reader = ShardReader(subject.plan.graph, job.source, threads)

    def answer(message: bytes) -> bytes:
        if not message:
            return encode(reader.place())
        with raised_limits(job.raise_limits):
            samples = reader.samples(decode_shard(message))
            model = Deployed(subject.plan, exported, job.kernels, threads)
            found = verify(model, batches_of(samples, job.size))
            sums = tuple(each.sums.saved() for each in found.summed)
            return encode(_Found(found.with_all_steps(), sums))

    return answer
