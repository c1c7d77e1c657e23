"""Trains a plan: the float model is the teacher, labels help where there are any."""

from __future__ import annotations

import hashlib
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from intact.data.batching import Batch
from intact.errors import DataError, UsageError, nearest
from intact.improve.learn.batches import LabelledBatch, Pool
from intact.improve.learn.checkpoints import damaged_error, read_checkpoint, write_checkpoint
from intact.improve.learn.instructions import Quantize
from intact.improve.learn.losses import Distillation, device_of, teacher_of
from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.quantizers import Quantizer
from intact.improve.trained import Epoch, Trained
from intact.plan.plan_file import plan_to_json

WARM_UP = 0.05
"""Share of the steps in which the learning rates rise from 0."""
SCALE_RATE = 0.01
"""Learning rate of the binary logarithms of scales (Jain et al. 2020), and of zero points."""
_EVERY = 30.0
"""Seconds between checkpoints within an epoch."""


@dataclass(frozen=True)
class Schedule:
    """How long, how fast and by what is trained.

    Attributes:
        epochs: Passes over the samples at most.
        rate: By how many steps of its quantizer an update moves a weight, about, at the start.
        label_weight: Share of the labels in the loss, where there are any that an output scores;
            the rest is the teacher's.
        asks_for_labels: Whether it is an error if there are none.
        patience: Epochs without gain after which training ends.
        seed: Decides orders, changes of images and what is held out.
        augment: Changes of images.
    """

    epochs: int = 10
    rate: float = 0.01
    label_weight: float = 0.5
    asks_for_labels: bool = False
    patience: int = 5
    seed: int = 0
    augment: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: A change of images is unknown, or the share of the labels is none.
        """
        refuse_unknown(self.augment)
        if not 0 <= self.label_weight <= 1:
            raise UsageError(f"--label-weight {self.label_weight:g}", remedy="give 0 to 1")


Report: TypeAlias = Callable[[Epoch], None]
Progress: TypeAlias = Callable[[int, int | None], None]


@dataclass
class _Place:
    """Where training is: the next epoch and step, and the losses of the epoch so far."""

    epoch: int = 1
    step: int = 0
    losses: list[float] = field(default_factory=list)


class Trainer:
    """Trains a module in place.

    Args:
        module: The module of a plan; it gets the parameters of the best epoch.
        pool: The samples.
        schedule: How.
        threads: The teacher's threads; 0 for all cores.
        checkpoint: Where the state is kept, to resume after a kill; None for nowhere.

    Raises:
        UsageError: Labels are to count, and there are none or no output for them; or there is
            nothing to train, or nothing to train it by.
        DataError: Labels are no classes of the output that scores.
    """

    def __init__(
        self,
        module: QuantizedModule,
        pool: Pool,
        schedule: Schedule,
        *,
        threads: int = 0,
        checkpoint: Path | None = None,
    ) -> None:
        self._module, self._pool, self._schedule = module, pool, schedule
        self._device = device_of(module)
        self._taught = teacher_of(module, threads)
        self._checkpoint, self._saved = checkpoint, time.monotonic()
        groups = parameter_groups(module, schedule.rate)
        if not groups:
            read = "train what was quantized from a float model, not what was read"
            raise UsageError(
                "the model has no weights, and its scales are fixed: nothing can be trained",
                remedy="let scales be learned: --quantizers lsq"
                if module.learning == "fixed"
                else read,
            )
        self._optimizer = torch.optim.Adam(groups)
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        first = next(pool.held_out())
        taught = self._taught(self._tensors(first.inputs))
        self._loss = Distillation(taught, has_labels=pool.labels is not None)
        self._check_labels(taught)
        self._place, self._done = _Place(), Trained()
        self._best: dict[str, Tensor] = {}

    def _check_labels(self, taught: Sequence[Tensor]) -> None:
        """Refuse labels that are asked for and not there, and those that are no classes."""
        labels, index = self._pool.labels, self._loss.scores
        if self._schedule.asks_for_labels and (labels is None or index is None):
            why = "there are no labels" if labels is None else "no output scores classes"
            raise UsageError(
                f"labels cannot be trained on: {why}", remedy="leave out --label-weight"
            )
        if labels is None or index is None:
            return
        low, high, classes = int(labels.min()), int(labels.max()), taught[index].shape[1]
        if low < 0 or high >= classes:
            raise DataError(
                f"{self._pool.source}: labels {low}..{high} for {classes} classes of output "
                f"{self._module.plan.graph.outputs[index].name!r}",
                remedy=f"number classes from 0 to {classes - 1}, or leave `labels` out",
            )

    def run(
        self,
        *,
        resume: bool = False,
        report: Report | None = None,
        progress: Progress | None = None,
    ) -> Trained:
        """Train to the end.

        Args:
            resume: Go on from the checkpoint, if there is one.
            report: Called after every epoch, and before the first.
            progress: Called with the steps done and of all.

        Raises:
            UsageError: The checkpoint is of another training.
        """
        if resume:
            self._resume()
        if not self._done.epochs:
            self._judge(None, 0.0, report)
        while self._place.epoch <= self._schedule.epochs and not self._done.stopped:
            started = time.monotonic()
            self._train_epoch(progress)
            if not self._done.stopped:
                self._judge(float(np.mean(self._place.losses)), time.monotonic() - started, report)
                self._place = _Place(self._place.epoch + 1)
                self._save()
        self._module.load_state_dict(self._best)
        return self._done

    def _train_epoch(self, progress: Progress | None) -> None:
        """Train from the place where training is to the end of the epoch."""
        place, steps = self._place, self._pool.steps
        self._module.train()
        for index, batch in enumerate(self._pool.epoch(place.epoch)):
            # Drawn and dropped: the order of an epoch is the same as before the kill.
            if index < place.step:
                continue
            loss = self._step(index, batch)
            if not math.isfinite(loss):
                self._done.stopped = self._why_not_finite(batch)
                return
            place.step = index + 1
            place.losses.append(loss)
            if time.monotonic() - self._saved > _EVERY:
                self._save()
            if progress is not None:
                progress((place.epoch - 1) * steps + place.step, self._schedule.epochs * steps)

    def _step(self, index: int, batch: LabelledBatch) -> float:
        """Train on a batch; return its loss."""
        epoch, schedule = self._place.epoch, self._schedule
        done = (epoch - 1) * self._pool.steps + index
        factor = rate_factor(done, schedule.epochs * self._pool.steps)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        # A seed of each step's own: a training that was killed goes on with the same changes.
        seed = np.random.SeedSequence((schedule.seed, epoch, index)).generate_state(1)
        random = torch.Generator().manual_seed(int(seed[0]))
        inputs = augment_images(self._tensors(batch.inputs), schedule.augment, random)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss_of(inputs, batch.labels)
        value = float(loss.detach())
        # A step by NaN would spoil every parameter, and nobody could tell any more
        # where it came from.
        if math.isfinite(value):
            loss.backward()
            self._optimizer.step()
        return value

    def _loss_of(self, inputs: Mapping[str, Tensor], labels: Any) -> Tensor:
        outputs, weight = self._run(inputs), self._schedule.label_weight
        loss = self._loss(outputs, self._taught(inputs))
        if labels is None or weight <= 0 or self._loss.scores is None:
            return loss
        return (1 - weight) * loss + weight * self._loss.of_labels(
            outputs, torch.from_numpy(labels).to(self._device)
        )

    def _run(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        result = self._module(**inputs)
        return result if isinstance(result, tuple) else (result,)

    def _tensors(self, inputs: Batch) -> dict[str, Tensor]:
        """Return a batch as tensors where the module is."""
        return {
            name: torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
            for name, array in inputs.items()
        }

    def _judge(self, loss: float | None, seconds: float, report: Report | None) -> None:
        """Measure on what is held out; keep the parameters if they are the best so far."""
        number = self._place.epoch if self._done.epochs else 0
        held_out, accuracy = self._measure()
        epoch = Epoch(number, loss, held_out, accuracy, seconds)
        earlier = min((each.held_out for each in self._done.epochs), default=math.inf)
        self._done.epochs.append(epoch)
        if held_out < earlier or not self._best:
            self._done.best = number
            # Cloned, because the optimizer changes the tensors of a state in place.
            self._best = {n: t.detach().clone() for n, t in self._module.state_dict().items()}
        elif number - self._done.best >= self._schedule.patience:
            self._done.stopped = f"no gain in {self._schedule.patience} epochs"
        if report is not None:
            report(epoch)

    def _measure(self) -> tuple[float, float | None]:
        """Return the loss on what is held out, and the percentage that is right."""
        self._module.eval()
        total = right = count = 0.0
        with torch.no_grad():
            for batch in self._pool.held_out():
                inputs = self._tensors(batch.inputs)
                outputs, size = self._run(inputs), batch.size
                total += size * float(self._loss_of(inputs, batch.labels))
                count += size
                if self._loss.scores is not None:
                    wanted = self._wanted_class(inputs, batch)
                    right += float((outputs[self._loss.scores].argmax(1) == wanted).sum())
        return total / count, None if self._loss.scores is None else 100 * right / count

    def _wanted_class(self, inputs: Mapping[str, Tensor], batch: LabelledBatch) -> Tensor:
        if batch.labels is not None:
            return torch.from_numpy(batch.labels).to(self._device)
        return self._taught(inputs)[self._loss.scores or 0].argmax(1)

    def _why_not_finite(self, batch: LabelledBatch) -> str:
        """Say where numbers stop being finite."""
        place = f"epoch {self._place.epoch}, step {self._place.step + 1}"
        name = self._module.first_not_finite(**self._tensors(batch.inputs))
        where = f"first in {name!r}" if name else "in the loss itself"
        return f"the loss is not finite in {place}, {where}: the best epoch before is kept"

    # ---- checkpoints -------------------------------------------------------------------------

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        self._saved = time.monotonic()
        write_checkpoint(
            self._checkpoint,
            {
                "of": self._identity(),
                "module": self._module.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "best": self._best,
                "place": asdict(self._place),
                "done": msgspec.to_builtins(self._done),
            },
        )

    def _resume(self) -> None:
        kept = None if self._checkpoint is None else read_checkpoint(self._checkpoint)
        if kept is None or self._checkpoint is None:
            return
        if kept["of"] != self._identity():
            raise UsageError(
                f"{self._checkpoint}: is of a training with other options, data or another plan",
                remedy="give the same, or remove the file",
            )
        try:
            # Loaded as well, so that a state that does not fit is refused now and not at the end.
            self._module.load_state_dict(kept["best"])
            self._module.load_state_dict(kept["module"])
            self._optimizer.load_state_dict(kept["optimizer"])
            self._best, self._place = kept["best"], _Place(**kept["place"])
            self._done = msgspec.convert(kept["done"], Trained)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise damaged_error(self._checkpoint, "it does not fit the model") from error

    def _identity(self) -> dict[str, Any]:
        """Return what a training is known by."""
        module = self._module
        schedule = {**asdict(self._schedule), "augment": list(self._schedule.augment)}
        how = [str(module.learning), str(module.folding), self._pool.count, self._pool.size]
        plan = hashlib.blake2b(plan_to_json(module.plan), digest_size=16).hexdigest()
        data = [self._pool.digest, zlib.crc32(self._labels_bytes())]
        graph = module.plan.graph.hash
        return {"plan": [graph, plan], "how": how, "data": data, "schedule": schedule}

    def _labels_bytes(self) -> bytes:
        return b"" if self._pool.labels is None else self._pool.labels.tobytes()


@contextmanager
def with_threads(threads: int) -> Iterator[None]:
    """Let torch use so many threads within; 0 leaves what it uses."""
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rate_factor(step: int, steps: int) -> float:
    """Return the learning rate at a step over the largest: up in a line, down as a cosine.

    >>> [round(rate_factor(step, 100), 2) for step in (0, 4, 53, 99)]
    [0.2, 1.0, 0.49, 0.0]
    """
    rising = max(round(WARM_UP * steps), 1)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(steps - rising, 1)))


def parameter_groups(module: QuantizedModule, rate: float) -> list[dict[str, Any]]:
    """Group the parameters of a module for an optimizer of the kind of Adam.

    An update of Adam moves a parameter by about the learning rate. That of a weight is given in
    steps of its quantizer, so that weights of 8 and of 2 bits move alike on their grids. Parameters
    without a quantizer have the median of these rates, scales a rate of their own.

    Args:
        module: The module.
        rate: Steps of the quantizer.
    """
    learned = module.constants.learned()
    groups: list[dict[str, Any]] = []
    grouped: set[Tensor] = set()
    for each in module.program.instructions:
        if isinstance(each, Quantize) and each.is_constant:
            name = each.reads[0].partition("/folded/")[0]
            quantizer = module.quantizers[each.quantizer]
            weight = learned.get(name)
            if weight is not None and weight not in grouped and isinstance(quantizer, Quantizer):
                grouped.add(weight)
                step = float(quantizer.scale().detach().mean())
                node = each.reads[0].partition("/folded/")[2]
                # The quantizer's steps are of the folded weight, which the normalization
                # multiplies.
                step /= _norm_ratio(module, node) if node else 1.0
                groups.append({"params": [weight], "lr": rate * step})
    usual = float(np.median([group["lr"] for group in groups])) if groups else rate * 0.01
    others: list[nn.Parameter | Tensor] = [
        tensor for tensor in dict.fromkeys(learned.values()) if tensor not in grouped
    ]
    others += module.norms.parameters()
    groups.append({"params": others, "lr": usual})
    groups += _scale_groups(module)
    return [group for group in groups if group["params"]]


def _scale_groups(module: QuantizedModule) -> list[dict[str, Any]]:
    """Group the parameters of quantizers: an update moves each scale by about the same factor."""
    groups: list[dict[str, Any]] = []
    for each in module.quantizers.values():
        if isinstance(each, Quantizer) and each.size is not None and not each.in_logarithms:
            rate = SCALE_RATE * math.log(2) * float(each.base.mean())
            groups.append({"params": [each.size], "lr": rate})
    grouped = {group["params"][0] for group in groups}
    others = [each for each in module.scale_parameters() if each not in grouped]
    return [*groups, {"params": others, "lr": SCALE_RATE}]


def _norm_ratio(module: QuantizedModule, node: str) -> float:
    """Return by how much the BatchNormalization of a layer multiplies its weights, about."""
    norm = module.norm_of(node)
    ratio = np.abs(norm.parameters_now().ratio) if norm is not None else np.ones(1)
    return float(ratio[ratio > 0].mean()) if ratio.any() else 1.0


_REACH = 8
"""Images are shifted by up to an eighth of their sides."""


def _flip(images: Tensor, random: torch.Generator) -> Tensor:
    """Mirror about every second image, left to right."""
    # Drawn on the CPU, so that every device gets the same changes.
    chosen = torch.rand(len(images), 1, 1, 1, generator=random) < 0.5
    return torch.where(chosen.to(images.device), images.flip(-1), images)


def _shift(images: Tensor, random: torch.Generator) -> Tensor:
    """Shift each image by its own number of rows and columns; the rest is 0."""
    height, width = images.shape[-2:]
    rows, columns = height // _REACH, width // _REACH
    wide = functional.pad(images, (columns, columns, rows, rows))
    top = torch.randint(0, 2 * rows + 1, (len(images),), generator=random).tolist()
    left = torch.randint(0, 2 * columns + 1, (len(images),), generator=random).tolist()
    return torch.stack(
        [
            image[..., y : y + height, x : x + width]
            for image, y, x in zip(wide, top, left, strict=True)
        ]
    )


AUGMENTATIONS: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = MappingProxyType(
    {"flip": _flip, "shift": _shift}
)
"""By name: from images ``[N, C, H, W]`` and a source of random numbers to images."""

_IMAGE_RANK = 4


def refuse_unknown(names: Sequence[str]) -> None:
    """Check names of changes.

    Raises:
        UsageError: One is unknown.
    """
    for each in names:
        if each not in AUGMENTATIONS:
            raise UsageError(f"--augment {each!r}", remedy=nearest(each, AUGMENTATIONS))


def augment_images(
    inputs: Mapping[str, Tensor], names: Sequence[str], random: torch.Generator
) -> dict[str, Tensor]:
    """Change the images of a batch.

    Args:
        inputs: The inputs by name; those of four axes are images with their channels second.
        names: Names of the changes, in their order.
        random: The source of random numbers.
    """
    found = dict(inputs)
    for each in names:
        for name, tensor in found.items():
            if tensor.ndim == _IMAGE_RANK and tensor.is_floating_point():
                found[name] = AUGMENTATIONS[each](tensor, random)
    return found
