"""Quantized models by hand, in the shapes that other quantizers write, and the check of reading."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort

from intact.engines.exact_sums import exact_sums
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.onnx_qdq.reader.parameters import is_dequantize, is_quantize, read_parameters
from intact.formats.onnx_qdq.write import QdqModel, write_qdq
from intact.plan import QuantizedGraph
from intact.targets import load_target
from tests.models import ModelBuilder, random_inputs

DType = type[Any]


class PairBuilder(ModelBuilder):
    """Writes QuantizeLinear and DequantizeLinear nodes."""

    domain = ""
    zero: Any = np.uint8(117)

    def quantize(
        self, x: str, scale: npt.ArrayLike, zero: Any, *, out: str | None = None, **more: Any
    ) -> str:
        """Quantize a value; ``zero`` has the type of the codes, None leaves it out."""
        inputs = [x, *self._parameters(scale, zero)]
        return self.node("QuantizeLinear", *inputs, out=out, domain=self.domain, **more)

    def dequantize(
        self, codes: str, scale: npt.ArrayLike, zero: Any, *, out: str | None = None, **more: Any
    ) -> str:
        """Dequantize codes."""
        inputs = [codes, *self._parameters(scale, zero)]
        return self.node("DequantizeLinear", *inputs, out=out, domain=self.domain, **more)

    def pair(
        self,
        x: str,
        scale: npt.ArrayLike = 0.05,
        zero: Any = "",
        *,
        out: str | None = None,
        **more: Any,
    ) -> str:
        """Quantize and dequantize a value; the builder's zero point where none is given."""
        zero = self.zero if isinstance(zero, str) else zero
        return self.dequantize(self.quantize(x, scale, zero, **more), scale, zero, out=out, **more)

    def stored(
        self,
        shape: tuple[int, ...],
        dtype: DType = np.int8,
        *,
        axis: int | None = 0,
        scale: float = 0.005,
    ) -> str:
        """A constant stored as integers, with a scale for each index of an axis."""
        low = 0 if np.dtype(dtype).kind == "u" else -100
        codes = self.random.integers(low, 100, shape).astype(dtype)
        channels = () if axis is None else (shape[axis],)
        scales = self._scales(channels, scale)
        more: dict[str, Any] = {} if axis is None else {"axis": axis}
        return self.dequantize(self.constant(codes), scales, np.zeros(channels, dtype), **more)

    def bias(self, channels: int, x_scale: float = 0.05, *, most: int = 3000) -> str:
        """An int32 bias without zero point, for a weight per channel that was stored before."""
        codes = self.random.integers(-most, most, channels).astype(np.int32)
        scales = np.float32(x_scale) * self._scales((channels,), 0.005)
        return self.dequantize(self.constant(codes), scales, None, axis=0)

    @staticmethod
    def _scales(channels: tuple[int, ...], scale: float) -> npt.NDArray[np.float32]:
        """Return the scales of a weight: ONNX Runtime compares those of its bias with them."""
        steps = np.linspace(1, 1.5, int(np.prod(channels)), dtype=np.float32)
        return (np.float32(scale) * steps).reshape(channels)

    def build(self) -> onnx.ModelProto:
        if self.domain:
            self.domains[self.domain] = 1
        return super().build()

    def _parameters(self, scale: npt.ArrayLike, zero: Any) -> list[str]:
        names = [self.constant(np.asarray(scale, np.float32))]
        return names if zero is None else [*names, self.constant(np.asarray(zero))]


def proto(model: ir.Model) -> onnx.ModelProto:
    """The model as others write it."""
    return ir.to_proto(model)


def session(model: onnx.ModelProto | ir.Model) -> ort.InferenceSession:
    """A session as users open one, with every optimization and with exact sums of products."""
    source = ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    source = exact_sums(source, options)
    return ort.InferenceSession(
        proto(source).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def fused_types(model: onnx.ModelProto) -> list[str]:
    """The operators that ONNX Runtime makes of a model."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/fused.onnx"
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return sorted(node.op_type for node in onnx.load(f"{folder}/fused.onnx").graph.node)


def read(model: onnx.ModelProto) -> QuantizedGraph:
    """The plan that a model holds."""
    return read_qdq(model, load_target("onnxruntime"))


def scales_of(model: ir.Model) -> set[tuple[bytes, bytes, str]]:
    """Scale, zero point and type of every pair of a model; packed codes are read as bytes."""
    nodes = [node for node in model.graph if is_quantize(node) or is_dequantize(node)]
    found = (read_parameters(node) for node in nodes)
    return {
        (p.scale.tobytes(), p.zero_point.tobytes(), str(p.container.in_bytes.data_type))
        for p in found
    }


def assert_exact(
    model: onnx.ModelProto, feeds: Iterable[Mapping[str, npt.NDArray[Any]]] | None = None
) -> tuple[QuantizedGraph, QdqModel]:
    """Read and write a model; ONNX Runtime must give the same bits for both."""
    plan = read(model)
    exported = write_qdq(plan)
    assert_same_outputs(model, exported.model, feeds)
    source = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    assert scales_of(exported.model) >= scales_of(source)
    return plan, exported


def assert_same_outputs(
    model: onnx.ModelProto,
    written: ir.Model,
    feeds: Iterable[Mapping[str, npt.NDArray[Any]]] | None = None,
) -> None:
    """ONNX Runtime must give the same bits for both, and not the same for all inputs."""
    onnx.checker.check_model(proto(written))
    before, after = session(model), session(written)
    for ours, theirs in zip(after.get_outputs(), before.get_outputs(), strict=True):
        assert (ours.name, ours.type) == (theirs.name, theirs.type)
    batches = feeds or [random_inputs(model, batch=3, seed=seed) for seed in range(3)]
    for batch in batches:
        pairs = zip(before.run(None, dict(batch)), after.run(None, dict(batch)), strict=True)
        for theirs, ours in pairs:
            np.testing.assert_array_equal(ours, theirs)
            assert len(np.unique(theirs)) > 1


def image(b: PairBuilder) -> str:
    """The input of most of these models."""
    return b.input("x", ["batch", 4, 6, 6])


def finish(b: PairBuilder, *outputs: str) -> onnx.ModelProto:
    """Hand out what is named, and build."""
    for name in outputs:
        b.output(name)
    return b.build()
