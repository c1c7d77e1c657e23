"""What was deployed against its plan, in the runtime that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from intact.comparing.runtimes import VERIFICATIONS, WITH_KERNELS, Deployed, verify_read
from intact.comparing.subject import Subject, batches_of
from intact.errors import DataError, IntactError, UsageError
from intact.exporting import FormatName
from intact.formats.exported import Exported
from intact.run.cpu import detect_cpu
from intact.samples.stream import Samples
from intact.verification import (
    Verification,
)

if TYPE_CHECKING:
    pass


def compare(
    subject: Subject,
    samples: Samples,
    *,
    kernels: str | None = None,
    deployed: str | None = None,
    threads: int = 0,
) -> Verification:
    """Compare what was deployed, in the runtime that fits its format, with its plan.

    Args:
        subject: What is verified.
        samples: The inputs, with labels if there are any.
        kernels: Which kernels run a ``.tflite``; None takes the target's.
        deployed: Which format, if there are several; None takes the first that can be run.
        threads: Threads of the runtime; 0 takes all cores.

    Raises:
        UsageError: There is no such format or kernel, or the format has no kernels to choose.
        IntactError: The runtime refuses the model, or is not installed.
    """
    feeds = batches_of(samples)
    if subject.read is not None:
        if deployed is not None:
            raise UsageError("--format is for a result, this is one file", remedy="leave it out")
        found = verify_read(subject.read, feeds, kernels, threads)
    else:
        name = _chosen(subject.exports, deployed)
        if kernels is not None and name not in WITH_KERNELS:
            raise UsageError(f"--kernels is for a .tflite, this is {name}", remedy="leave it out")
        found = VERIFICATIONS[name](
            Deployed(subject.plan, subject.exports[name], kernels, threads), feeds
        )
        found.format = name.value
    found.score(samples.labels())
    return found


def compare_or_say(
    subject: Subject,
    samples: Samples,
    *,
    kernels: str | None = None,
    deployed: str | None = None,
    threads: int = 0,
) -> Verification:
    """Compare as `compare` does; what is wrong with the model, not with the data, is returned."""
    try:
        return compare(subject, samples, kernels=kernels, deployed=deployed, threads=threads)
    except (DataError, UsageError):
        raise
    except IntactError as error:
        return not_compared(subject.plan.target.name, str(error), deployed or "")


def not_compared(target: str, reason: str, deployed: str = "") -> Verification:
    """Return the entry of what could not be run."""
    return Verification(
        target=target,
        runtime="",
        cpu=detect_cpu(),
        samples=0,
        layers=[],
        format=deployed,
        refused=reason,
    )


def takes_kernels(name: FormatName) -> bool:
    """Tell whether a format is run by kernels that one can choose."""
    return name in WITH_KERNELS


def runnable_formats(subject: Subject) -> tuple[FormatName, ...]:
    """Return the formats of a result that a runtime can run."""
    return tuple(name for name in subject.exports if name in VERIFICATIONS)


def _chosen(exports: Mapping[FormatName, Exported], deployed: str | None) -> FormatName:
    if deployed is None:
        for name in exports:
            if name in VERIFICATIONS:
                return name
        deployed = next(iter(exports))
    if deployed not in exports:
        raise UsageError(
            f"--format {deployed!r}: the result has {', '.join(exports)}", remedy="choose of these"
        )
    if deployed not in VERIFICATIONS:
        raise UsageError(
            f"{deployed} holds scales and no program, so there is nothing to run",
            remedy="write another format too, with `intact export`",
        )
    return FormatName(deployed)
