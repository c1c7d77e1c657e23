"""Trains a result: its plan as a module, the float model as the teacher."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intact._files import write_whole
from intact.data.progress import begin
from intact.errors import UsageError
from intact.flow.torch_modules import require_torch
from intact.improve.trained import LOG, Epoch, Trained, read_epochs
from intact.results.first_run import run_once
from intact.results.folder import check_output
from intact.results.recipes import recipe_of
from intact.results.result import Result
from intact.results.samples import open_for_result
from intact.results.sources import deployment_of, load_result

if TYPE_CHECKING:
    from intact.plan import QuantizedGraph
    from intact.recipe.training import TrainOptions

CHECKPOINT = ".train.pt"
"""What lies beside the output folder while it is trained: the state."""


def train(options: TrainOptions) -> Result:
    """Train the plan of a result.

    Raises:
        IntactError: The folder, the data or an option is wrong, or torch is missing.
    """
    # First of all: no reading of models to be told that torch is missing.
    require_torch()
    output = None if options.output is None else Path(options.output)
    if options.resume and output is None:
        raise UsageError("--resume without --output", remedy="name the folder as before")
    loaded = load_result(options.result)
    if output is not None:
        check_output(output)
        output.parent.mkdir(parents=True, exist_ok=True)  # for what lies beside it
    formats = options.formats or list(loaded.exports)
    deployment = deployment_of(loaded.plan.target, formats, options.io, options.layout)
    plan, trained = _train(options, loaded, output)
    begin(options.progress, "writing")
    result = deployment.result(plan, None, loaded.preprocess)
    run_once(result, threads=options.threads)
    result.trained = trained
    result.recipe = recipe_of("train", options, result)
    if output is not None:
        result.save(output)
        # Last, so that a training whose result could not be written can be resumed.
        _path_beside(output, CHECKPOINT).unlink(missing_ok=True)
    return result


def _train(
    options: TrainOptions, loaded: Result, output: Path | None
) -> tuple[QuantizedGraph, Trained]:
    """Train; return the plan with what was learned, and how it went."""
    from intact.improve.learn.batches import Pool
    from intact.improve.learn.losses import named_device
    from intact.improve.learn.module import QuantizedModule
    from intact.improve.learn.training import Schedule, Trainer, with_threads
    from intact.improve.learn.write_back import trained_plan

    module = QuantizedModule(
        loaded.plan,
        learning=options.quantizers,
        batch_norm=options.batch_norm,
        in_logarithms=True,
    )
    module.to(named_device(options.device))
    weight = options.label_weight
    schedule = Schedule(
        epochs=options.epochs,
        rate=options.rate,
        label_weight=_USUAL_WEIGHT if weight is None else weight,
        asks_for_labels=weight is not None and weight > 0,
        patience=options.patience,
        seed=options.seed,
        augment=tuple(options.augment),
    )
    begin(options.progress, "reading samples")
    pool = Pool(
        open_for_result(
            options, options.data, loaded, limit=options.samples, labels=options.labels
        ),
        options.batch,
        options.seed,
    )
    checkpoint = None if output is None else _path_beside(output, CHECKPOINT)
    with with_threads(options.threads):
        trainer = Trainer(module, pool, schedule, threads=options.threads, checkpoint=checkpoint)
        log = _Log(None if output is None else _path_beside(output, LOG), options)
        begin(options.progress, "training")
        found = trainer.run(resume=options.resume, report=log, progress=options.progress)
        plan = trained_plan(module)
    how = f"{module.learning}, best of {len(found.epochs) - 1} epochs: {found.best}"
    return replace(plan, provenance=loaded.plan.provenance.trained_by(how)), found


_USUAL_WEIGHT = 0.5


def _path_beside(folder: Path, suffix: str) -> Path:
    folder = folder if folder.name not in ("", "..") else folder.resolve()
    return folder.with_name(folder.name + suffix)


class _Log:
    """Writes the loss curve, a line of JSON an epoch, and tells who wants to know."""

    def __init__(self, path: Path | None, options: TrainOptions) -> None:
        self._path, self._report = path, options.report
        self._epochs: list[Epoch] = []
        if path is not None and path.is_file() and options.resume:
            self._epochs = read_epochs(path)

    def __call__(self, epoch: Epoch) -> None:
        # What was told behind the last checkpoint before a kill is told again.
        self._epochs = [each for each in self._epochs if each.number < epoch.number] + [epoch]
        if self._path is not None:
            lines = [json.dumps(msgspec.to_builtins(each)) for each in self._epochs]
            write_whole(self._path, "".join(f"{line}\n" for line in lines).encode())
        if self._report is not None:
            self._report(epoch)
