"""What a seeded fault is, and how its files are laid down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx

from tests.faults.nets import Builder, Digits, Net, digits

Options: TypeAlias = tuple[str, ...]
Build: TypeAlias = Callable[[Path, bool], Options]
"""From an empty folder, and whether the fault is in, to the options of ``intact quantize``."""


_EXACT = 100.0


@dataclass(frozen=True)
class Case:
    """A model with one fault, or with none.

    Attributes:
        name: In tables.
        cause: The fault: a key of ``CAUSES``; "" for a healthy model.
        build: Writes ``model.onnx``, ``calib.npz`` and ``test.npz`` (or folders of images ``calib``
            and ``test``), with the fault or without.
        loss: What the fault costs at least.
        unit: Of the loss: ``"dB"`` of the worst output's signal to quantization noise,
            ``"points"`` of the quantized model's accuracy, ``"times"`` as fast as float.
        also: Other causes that are as right, where two names fit the same fault.
        places: Nodes and tensors of which the finding is to name one; empty where any will do.
    """

    name: str
    cause: str
    build: Build
    loss: float = 6.0
    unit: Literal["dB", "points", "times"] = "dB"
    also: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()

    def is_named_by(self, cause: str, *places: str) -> bool:
        """Tell whether a cause is the right one, at the right place."""
        is_there = not self.places or not self.places.isdisjoint(places)
        return is_there and (cause == self.cause or cause in self.also)


def quantized_data(folder: Path) -> Options:
    """Return the arguments that name a case's files."""
    calibration = "calib.npz" if (folder / "calib.npz").exists() else "calib"
    return str(folder / "model.onnx"), "--data", str(folder / calibration)


def evaluated_data(folder: Path) -> Path:
    """Return where the test samples of a case are."""
    archive = folder / "test.npz"
    return archive if archive.exists() else folder / "test"


def figure(case: Case, evaluation: Mapping[str, Any]) -> float:
    """Return what a case is about, of what ``intact evaluate --json`` prints.

    Decibels are those of the worst output; exact ones count as 100.
    """
    if case.unit == "points":
        return float(evaluation["accuracy"]["top1"][1])
    if case.unit == "times":
        return float(evaluation["speedup"])
    outputs = evaluation["outputs"].values() or [[evaluation["sqnr_db"]]]
    return min(_EXACT if each[0] is None else float(each[0]) for each in outputs)


def lay_down(
    folder: Path,
    net: Net | onnx.ModelProto,
    *,
    change: Callable[[Digits], npt.NDArray[np.generic]] = lambda part: part.ready,
    calibration: Callable[[Digits], npt.NDArray[np.generic]] | None = None,
) -> None:
    """Write a net and its digits.

    Args:
        folder: Where.
        net: The net.
        change: What the files hold of the digits.
        calibration: The same for those that calibrate; as for the others if it is left out.
    """
    onnx.save(net.model if isinstance(net, Net) else net, folder / "model.onnx")
    for part, prepare in (("calib", calibration or change), ("test", change)):
        read = digits(part)
        np.savez(folder / f"{part}.npz", image=prepare(read), labels=read.labels)


def by_options(build: Builder, faulty: Options, healthy: Options = ()) -> Build:
    """Make a case whose fault is in the options alone."""

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, build())
        return faulty if is_faulty else healthy

    return made


def by_target(build: Builder, target: str, options: Options = (), healthy: Options = ()) -> Build:
    """Make a case whose fault is the target that the user describes."""

    def made(folder: Path, is_faulty: bool) -> Options:
        lay_down(folder, build())
        if not is_faulty:
            return healthy
        file = folder / "target.toml"
        file.write_text(f'format = 2\nname = "own"\n{target}', encoding="utf-8")
        return "--target", str(file), *options

    return made


def by_net(build: Builder, change: Callable[[Net], None], options: Options = ()) -> Build:
    """Make a case whose fault is in the net; the change does not change what it computes."""

    def made(folder: Path, is_faulty: bool) -> Options:
        net = build()
        if is_faulty:
            change(net)
        lay_down(folder, net)
        return options

    return made
