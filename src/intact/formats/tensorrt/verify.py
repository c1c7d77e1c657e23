"""A model for TensorRT, without TensorRT: its rules, and what the model computes elsewhere.

TensorRT runs on NVIDIA's GPUs only. What can be checked without one are the rules of its documents.
The model is ordinary ONNX, so ONNX Runtime shows what it computes: every operator in float as the
file has it, against the simulation, from end to end. ONNX Runtime's integer kernels are not
TensorRT's, and stay out of this.
"""

from __future__ import annotations

from collections.abc import Iterable

from intact.engines.limits import limits_of_simulation
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import OutputsOfSimulation, compare
from intact.formats.onnx_qdq.run import RUNTIME, QdqRuntime
from intact.formats.tensorrt.rules import WrittenModel, check_tensorrt
from intact.formats.tensorrt.write import TensorRtModel
from intact.plan import QuantizedGraph

_NO_RUNTIME = "rules only (no TensorRT here)"
_OUTPUTS_OF = (
    f"there is no TensorRT to compare with; the outputs are those of {RUNTIME} on the CPU, each "
    "operator in float, against the simulation"
)


def verify_tensorrt(
    plan: QuantizedGraph, exported: TensorRtModel, batches: Iterable[Feeds], *, threads: int = 0
) -> Verification:
    """Check the files of a plan against TensorRT's rules, and run the model in ONNX Runtime.

    Args:
        plan: The plan.
        exported: What was written from it, or read back.
        batches: Inputs by name.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: ONNX Runtime refuses the model, or fails on it.
        DataError: The model gives other shapes than the plan.
    """
    rules = check_tensorrt(WrittenModel(exported.model, exported.tables, plan.graph))
    runtime = QdqRuntime(exported.model, threads=threads, fuse=False)
    reference = OutputsOfSimulation(plan, threads=threads)
    found = compare(plan, _NO_RUNTIME, runtime.run, reference, batches)
    found.rules = rules
    found.no_engine = _OUTPUTS_OF
    found.not_simulated = limits_of_simulation(plan)
    return found
