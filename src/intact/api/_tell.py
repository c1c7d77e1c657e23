"""Declares the public functions that report on results.

Each carries out the options that it is declared with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact.recipe.declare import public
from intact.recipe.reports import (
    CompareOptions,
    ConvertRangesOptions,
    DiagnoseOptions,
    EdgeOptions,
    EvaluateOptions,
    InspectOptions,
    LayerOptions,
    ReportOptions,
)
from intact.recipe.runs import ExecuteOptions, VerifyAllOptions, VerifyOptions

if TYPE_CHECKING:
    from intact.analyze.comparison import Comparison
    from intact.analyze.diagnose.diagnosis import Diagnosis
    from intact.analyze.errors import GraphStatistic, QuantLoss
    from intact.analyze.evaluation.figures import Evaluation
    from intact.analyze.report.figures import Report
    from intact.formats.base.report import Verification
    from intact.numerics.conversion import Quantization
    from intact.plan.inspection import Inspection
    from intact.results.execution import Run


@public(InspectOptions)
def inspect(options: InspectOptions) -> Inspection:
    """Report which nodes will be quantized and why (not), without data.

    Of a model that is quantized already, the scales and widths that it has are reported; of a
    result's folder, its plan. Without a target a ``.tflite`` is taken for ``tflite``, a ``.tmfile``
    for ``tengine``, a model with FakeQuantize for ``openvino``, and any other for ``onnxruntime``.

    Raises:
        IntactError: The model, the target or an override is wrong.
    """
    # Imported at the call, as each function here does: a verification loads no diagnosis.
    from intact.flow.inspection import inspect as run

    return run(options)


@public(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> Evaluation:
    """Run float and quantized model over data: accuracy, error, size, latency.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    from intact.analyze.evaluation.result_evaluation import evaluate as run

    return run(options)


@public(LayerOptions)
def quant_loss(options: LayerOptions) -> QuantLoss:
    """Compare each layer of the quantized model with the float model's: cosine, SQNR, error.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    from intact.analyze.evaluation.result_evaluation import quant_loss as run

    return run(options)


@public(EdgeOptions)
def inspect_graph_statistic(options: EdgeOptions) -> GraphStatistic:
    """Compare each edge before and after quantizing: mean, deviation, extremes, SQNR, cosine.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    from intact.analyze.evaluation.result_evaluation import inspect_graph_statistic as run

    return run(options)


@public(ExecuteOptions)
def execute(options: ExecuteOptions) -> Run:
    """Run a model or a plan on data, by any executor.

    Raises:
        IntactError: The model or the data is wrong, or has no plan to be run by.
    """
    from intact.results.execution import execute as run

    return run(options)


@public(ConvertRangesOptions)
def convert_ranges(options: ConvertRangesOptions) -> Quantization:
    """Turn a scale and zero point into the range of the codes, or a range into those.

    Raises:
        UsageError: Both forms are given, or neither; or numbers that are impossible.
        ConfigError: An end of the range is not finite, or the ends are crossed.
    """
    from intact.flow.inspection import convert_ranges as run

    return run(options)


@public(DiagnoseOptions)
def diagnose(options: DiagnoseOptions) -> Diagnosis:
    """Find out why a result loses: findings with cause, evidence and remedy, worst first.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    from intact.analyze.diagnose.result_diagnosis import diagnose as run

    return run(options)


@public(CompareOptions)
def compare(options: CompareOptions) -> Comparison:
    """Compare results of quantization: decisions, errors, cost and, with labels, accuracy.

    Results may be of different targets and float models: then what they share is compared, and
    ``remarks`` of the comparison says what is not comparable.

    Raises:
        UsageError: There are fewer than two results.
        IntactError: A folder is wrong, or the data fits none of the results.
    """
    from intact.analyze.result_comparison import compare as run

    return run(options)


@public(ReportOptions)
def report(options: ReportOptions) -> Report:
    """Write all that is known of a result as one page: report.html in its folder.

    Returns:
        What the page shows, as figures.

    Raises:
        MissingExtraError: The extra ``report`` is not installed.
        IntactError: The folder or the data is wrong, or the page cannot be written.
    """
    from intact.analyze.report.gather import report as run

    return run(options)


@public(VerifyOptions)
def verify(options: VerifyOptions) -> Verification:
    """Compare what was deployed with the integers of its plan, layer by layer.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    from intact.analyze.verification.verify import verify as run

    return run(options)


@public(VerifyAllOptions)
def verify_all(options: VerifyAllOptions) -> list[Verification]:
    """Verify everything that was deployed: each format of a result, of each result in a folder.

    Where there are several, a runtime that is missing or refuses a model is no error: its entry
    says why. The samples are read for each format anew, so give arrays or files.

    Raises:
        IntactError: A folder or the data is wrong, or nothing in it can be run.
    """
    from intact.analyze.verification.verify import verify_all as run

    return run(options)
