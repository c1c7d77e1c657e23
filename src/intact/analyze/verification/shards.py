"""Runs `verify` on a cluster, and merges what its workers found.

A worker compares the runtime with the plan on a shard of the samples. It replies with counts, which
are integers, and with exact sums, so the merged verification is the same as that of one machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import onnx_ir as ir

from intact.analyze.verification.subject import Subject, batches_of, choose_format
from intact.calibrate.shards import SampleMap, mapped
from intact.data.shards import encode
from intact.data.stream import Samples
from intact.errors import ClusterError
from intact.formats.base.format import Deployed
from intact.formats.base.report import Verification
from intact.graph import Graph
from intact.numerics.error_sums import ErrorSums, SavedSums
from intact.results.result import Result
from intact.targets import Target

_RESULT, _JOB = "result", "job.msgpack"
"""What a saved job consists of, beside the file of others."""


class _Request(msgspec.Struct, frozen=True):
    target: Target
    deployed: str
    kernels: str | None
    size: int
    file: str


class _Reply(msgspec.Struct, frozen=True):
    """What a worker found in a shard, with the sums of each output."""

    verification: Verification
    sums: tuple[SavedSums, ...]


_decode_job = msgspec.msgpack.Decoder(_Request).decode
_decode_reply = msgspec.msgpack.Decoder(_Reply).decode


class VerificationJob(NamedTuple):
    """Compares samples; see `intact.calibrate.shards.SampleJob`.

    Attributes:
        subject: What is verified.
        deployed: The name of its format.
        kernels: See `intact.analyze.verification.compare.compare`.
        size: Samples in a batch.
    """

    subject: Subject
    deployed: str
    kernels: str | None
    size: int

    @property
    def graph(self) -> Graph:
        """The float model."""
        return self.subject.plan.graph

    def save(self, folder: Path) -> None:
        """Write the job to a folder, from which workers `load` it."""
        subject, file = self.subject, ""
        if subject.result is not None:
            replace(subject.result).save(folder / _RESULT)  # a copy: it stays where it is
        elif subject.file is not None:
            file = f"deployed{subject.file.suffix}"
            shutil.copyfile(subject.file, folder / file)
        asked = _Request(subject.plan.target, self.deployed, self.kernels, self.size, file)
        (folder / _JOB).write_bytes(encode(asked))

    @classmethod
    def load(cls, folder: Path) -> VerificationJob:
        """Read a job that `save` wrote."""
        asked = _decode_job((folder / _JOB).read_bytes())
        subject = (
            Subject.of_file(folder / asked.file, asked.target)
            if asked.file
            else Subject.of_result(Result.load(folder / _RESULT))
        )
        # Mapped now, because the folder goes once the job is open.
        mapped(subject.plan.graph.model)
        if isinstance(model := getattr(subject.exports[asked.deployed], "model", None), ir.Model):
            mapped(model)
        return cls(subject, asked.deployed, asked.kernels, asked.size)

    def open(self, threads: int, *, takes_feeds: bool) -> Callable[[Samples], _Reply]:
        """Choose the verifier of the format; return the function that runs it on a shard."""
        del takes_feeds  # the samples know it themselves
        plan, exported = self.subject.plan, self.subject.exports[self.deployed]
        _, verify = choose_format(self.subject.exports, self.deployed)

        def verify_shard(samples: Samples) -> _Reply:
            model = Deployed(plan, exported, self.kernels, threads)
            verification = verify(model, batches_of(samples, self.size))
            sums = tuple(each.sums.saved() for each in verification.summed)
            return _Reply(verification.with_all_steps(), sums)

        return verify_shard


def compare_on(
    cluster: SampleMap, job: VerificationJob, samples: Samples, *, threads: int = 0
) -> Verification:
    """Compare what was deployed with its plan on a cluster.

    Args:
        cluster: Whose workers do it.
        job: What they do.
        samples: The inputs; their labels are known afterwards.
        threads: Threads of each worker; 0 divides the processors of the cluster.

    Raises:
        ClusterError: The cluster cannot be reached, has other versions, or loses its workers; or
            these have different runtimes or processors.
        UsageError: The samples have an order, or can be read once only.
        IntactError: The runtime refuses the model, or is not installed there.
    """
    # A shard loads the model in its runtime, so there are few.
    replies = cluster.replies_in_order(samples, job.size, job, threads=threads, shards=1)
    merged, *others = (_verification_of(reply) for reply in replies)
    for each in others:
        _refuse_others(merged, each)
        merged.join(each)
    return merged


def _refuse_others(one: Verification, other: Verification) -> None:
    """Refuse results of two runtimes: a verification is of one, on one kind of processor."""
    # Kernels differ by processor, so merged differences would be of no machine.
    if (one.runtime, one.cpu) == (other.runtime, other.cpu):
        return
    names = " and ".join(f"{each.runtime} on {each.cpu.name}" for each in (one, other))
    raise ClusterError(
        f"the workers are not alike ({names}): a verification is of one runtime and processor",
        remedy="give --cluster one kind of worker, or leave it out",
    )


def _verification_of(reply: bytes) -> Verification:
    message = _decode_reply(reply)
    found = message.verification
    for output, sums in zip(found.summed, message.sums, strict=True):
        output.sums = ErrorSums.of(sums)
    return found
