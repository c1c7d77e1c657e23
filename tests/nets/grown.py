"""Random nets of all opsets that grow step by step: the second generator, apart from the first.

A `Grown` net is a few numbers: an opset, whether the batch is dynamic, the regimes of its values,
and steps. Each step is an operator and the seed of all that its maker draws: which tensors it
reads, its attributes, its constants. Shapes are those that ONNX infers; a step that does not fit is
left out. So any part of the steps is a net as well, and one that shows a fault can be made smaller.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference
from onnx import TensorProto, helper, numpy_helper

from tests.nets.findings import shorter
from tests.nets.regimes import SAMPLES, WEIGHTS

OPSETS = range(7, 25)
MOST_VALUES = 4096
"""Of a tensor in one sample."""
_BATCH = "N"
_LIKE_THE_INPUT = {"GroupNormalization", "MeanVarianceNormalization"}
"""Operators of which ONNX infers no shape: that of what they read."""
_ALIASES = {("Pad", "value"): "constant_value", ("TopK", "k"): "K"}
"""Names of what was an attribute first and became an input of another name."""

_REFUSALS = (
    onnx.defs.SchemaError,
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
)
"""How ONNX says that an operator is not there, deprecated, or does not take its inputs."""

Shape = tuple[int | str, ...]


class UnfitError(Exception):
    """A step cannot be applied to the tensors that there are."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of the net.

    Attributes:
        name: Of the tensor.
        shape: With `_BATCH` in front where the batch is dynamic.
        dtype: Of `onnx.TensorProto`.
        constant: Its value, where it is a constant as such.
        varies: Whether it depends on the inputs.
    """

    name: str
    shape: Shape
    dtype: int = TensorProto.FLOAT
    constant: onnx.TensorProto | None = None
    varies: bool = True

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its shape with a batch of 1."""
        return tuple(size if isinstance(size, int) else 1 for size in self.shape)


class NetBuilder:
    """A net under construction; makers call it."""

    def __init__(self, net: Grown) -> None:
        self.opset = net.opset
        self.dynamic = net.dynamic
        self.regime = net.weights
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.tensors: list[Tensor] = []
        self._step = ""
        self._count = 0

    # ---- steps ----

    def take(self, step: Step, make: Callable[[NetBuilder], Sequence[Tensor] | Tensor]) -> bool:
        """Apply a maker; tell whether it fits. Nothing is left of one that does not."""
        self.random = np.random.default_rng(step.seed)
        self._step, self._count = f"{step.operator}_{step.seed}", 0
        if any(each.name.startswith(f"{self._step}_") for each in self.tensors):
            return False
        nodes, initializers = len(self.nodes), len(self.initializers)
        try:
            found = make(self)
            made = [found] if isinstance(found, Tensor) else list(found)
            if not all(map(self._keeps_batch, made)):
                raise UnfitError
        except (UnfitError, *_REFUSALS):
            del self.nodes[nodes:], self.initializers[initializers:]
            return False
        self.tensors += made
        return True

    def _keeps_batch(self, tensor: Tensor) -> bool:
        """Whether the dynamic batch, if there is one, is the first axis and no other."""
        batched = self.dynamic and tensor.varies
        own = tensor.shape[1:] if batched else tensor.shape
        return (not batched or tensor.shape[:1] == (_BATCH,)) and _BATCH not in own

    def _fresh(self) -> str:
        self._count += 1
        return f"{self._step}_{self._count}"

    # ---- choices ----

    def pick(
        self, fits: Callable[[Tensor], bool] = lambda _: True, dtype: int = TensorProto.FLOAT
    ) -> Tensor:
        """Choose a tensor: the newest that fits, or one by its name and the step's.

        The choice by name stays the same where other steps are left out.
        """
        found = [each for each in self.tensors if each.dtype == dtype and fits(each)]
        if not found:
            raise UnfitError
        if self.random.random() < 0.6:
            return found[-1]
        salt = self._step + str(self.random.integers(99))
        return max(found, key=lambda each: zlib.crc32((salt + each.name).encode()))

    def any_of(self, *choices: Any) -> Any:
        """Choose one of the arguments."""
        return choices[int(self.random.integers(len(choices)))]

    def integer(self, low: int, high: int) -> int:
        """Draw an integer, both ends included."""
        return int(self.random.integers(low, high + 1))

    def axis(self, x: Tensor, *, batch: bool = False) -> int:
        """Choose an axis, from the front or the end; the batch only where it is a fixed one."""
        first = 0 if batch or not self.dynamic else 1
        if x.rank <= first:
            raise UnfitError
        chosen = self.integer(first, x.rank - 1)
        # Negative axes came with opset 11.
        return chosen - x.rank if self.opset >= 11 and self.random.random() < 0.3 else chosen

    # ---- constants ----

    def drawn(self, shape: Sequence[int], fan: int = 1, axis: int = 0) -> npt.NDArray[np.float32]:
        """Draw numbers of the net's regime, or plain ones."""
        values = self.random.normal(size=tuple(shape)) / math.sqrt(max(1, fan))
        regime = self.regime if self.random.random() < 0.5 else "plain"
        return WEIGHTS[regime](values, self.random, axis).astype(np.float32)

    def constant(self, value: npt.ArrayLike) -> Tensor:
        """Add a constant: an initializer or a Constant."""
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        name = self._fresh()
        proto = numpy_helper.from_array(array, name)
        # A Constant holds floats only, before opset 9.
        if self.random.random() < 0.5 or (self.opset < 9 and array.dtype != np.float32):
            self.initializers.append(proto)
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], name, value=proto))
        return Tensor(name, array.shape, proto.data_type, proto, varies=False)

    def weight(self, *shape: int, fan: int = 1, axis: int = 0) -> Tensor:
        """Add a constant of drawn numbers."""
        return self.constant(self.drawn(shape, fan, axis))

    # ---- nodes ----

    def add(self, operator: str, *inputs: Tensor | None, **arguments: Any) -> Tensor:
        """Add a node of one output; see `add_all`."""
        return self.add_all(operator, 1, *inputs, **arguments)[0]

    def add_all(
        self, operator: str, outputs: int, *inputs: Tensor | None, **arguments: Any
    ) -> list[Tensor]:
        """Add a node.

        An argument is an attribute or a constant input, whichever it is in the opset of the net.

        Raises:
            UnfitError: The opset has no such argument, or the result is too large or has no fixed
                shape.
            onnx.defs.SchemaError: The opset has no such operator.
            onnx.shape_inference.InferenceError: The inputs do not fit.
        """
        schema = onnx.defs.get_schema(operator, self.opset, "")
        given = list(inputs)
        attributes = {}
        for name, value in arguments.items():
            if name in schema.attributes:
                attributes[name] = value
                continue
            slot = _slot(schema, _ALIASES.get((operator, name), name))
            given += [None] * (slot + 1 - len(given))
            given[slot] = value if isinstance(value, Tensor) else self.constant(value)
        node = helper.make_node(
            operator,
            ["" if each is None else each.name for each in given],
            [self._fresh() for _ in range(outputs)],
            **attributes,
        )
        node.name = f"node_{node.output[0]}"
        read = [each for each in given if each is not None]
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            node,
            {each.name: helper.make_tensor_type_proto(each.dtype, each.shape) for each in read},
            {each.name: each.constant for each in read if each.constant is not None},
            opset_imports=[helper.make_opsetid("", self.opset)],
        )
        if operator in _LIKE_THE_INPUT:
            found = {node.output[0]: helper.make_tensor_type_proto(read[0].dtype, read[0].shape)}
        varies = any(each.varies for each in read)
        made = [self._made(name, found.get(name), varies=varies) for name in node.output]
        self.nodes.append(node)
        return made

    def _made(self, name: str, type_proto: onnx.TypeProto | None, *, varies: bool) -> Tensor:
        if type_proto is None or not type_proto.tensor_type.HasField("shape"):
            raise UnfitError
        dims = type_proto.tensor_type.shape.dim
        shape: Shape = tuple(dim.dim_param or dim.dim_value for dim in dims)
        if not all(size == _BATCH or (isinstance(size, int) and size > 0) for size in shape):
            raise UnfitError
        tensor = Tensor(name, shape, type_proto.tensor_type.elem_type, varies=varies)
        if math.prod(tensor.sizes) > MOST_VALUES or tensor.rank > 6:
            raise UnfitError
        return tensor


def _slot(schema: onnx.defs.OpSchema, name: str) -> int:
    for slot, each in enumerate(schema.inputs):
        if each.name == name:
            return slot
    raise UnfitError


@dataclass(frozen=True)
class Step:
    """An operator, and the seed of what its maker draws."""

    operator: str
    seed: int


@dataclass(frozen=True)
class Grown:
    """A random net.

    Attributes:
        opset: Of the model.
        inputs: Shapes of one sample, without the batch.
        dynamic: Whether the batch is of any size; else it is 1, and an axis like the others.
        steps: What it consists of.
        fed: A regime of `SAMPLES`.
        weights: A regime of `WEIGHTS`.
        inner: Whether a tensor that is read is an output too.
    """

    opset: int
    inputs: tuple[tuple[int, ...], ...]
    dynamic: bool
    steps: tuple[Step, ...]
    fed: str = "plain"
    weights: str = "plain"
    inner: bool = False

    @cached_property
    def _model(self) -> onnx.ModelProto:
        from tests.nets.makers import MAKERS

        builder = NetBuilder(self)
        batch: int | str = _BATCH if self.dynamic else 1
        builder.tensors = [
            Tensor(f"x{index}", (batch, *shape)) for index, shape in enumerate(self.inputs)
        ]
        ports = list(builder.tensors)
        for step in self.steps:
            builder.take(step, MAKERS[step.operator])
        return self._written(builder, ports)

    def _written(self, builder: NetBuilder, ports: Sequence[Tensor]) -> onnx.ModelProto:
        read = {name for node in builder.nodes for name in node.input}
        used = [each for each in ports if each.name in read]
        made = [each for each in builder.tensors if each.varies and each not in ports]
        ends = [each for each in made if each.name not in read]
        if self.inner:
            ends += [each for each in made if each.name in read][-2:-1]
        old = self.opset <= 8
        graph = helper.make_graph(
            builder.nodes,
            "grown",
            [_info(each) for each in used],
            [_info(each) for each in ends],
            builder.initializers,
        )
        if old:  # initializers were inputs as well, before version 4 of the file format
            graph.input.extend(
                helper.make_tensor_value_info(each.name, each.data_type, each.dims)
                for each in builder.initializers
            )
        version = 3 if old else 8 if self.opset < 21 else 10
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=version)

    def model(self) -> onnx.ModelProto:
        """Return the model; all tensors that nothing reads are its outputs."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self._model)
        return copy

    def samples(self, count: int, *, seed: int = 1) -> dict[str, npt.NDArray[np.float32]]:
        """Draw samples, with the batch in front."""
        random = np.random.default_rng([seed, len(self.inputs)])
        constants = {each.name for each in self._model.graph.initializer}
        wanted = {each.name for each in self._model.graph.input} - constants
        found = {}
        for index, shape in enumerate(self.inputs):
            values = random.normal(size=(count, *shape))
            # The regime is one for all samples: which channels are dead does not change.
            regime = SAMPLES[self.fed](values, np.random.default_rng(index), 1)
            found[f"x{index}"] = regime.astype(np.float32)
        return {name: array for name, array in found.items() if name in wanted}

    def smaller(self) -> Iterator[Grown]:
        """Yield nets that are simpler in one respect."""
        for left in shorter(self.steps):
            yield replace(self, steps=left)
        if self.fed != "plain":
            yield replace(self, fed="plain")
        if self.weights != "plain":
            yield replace(self, weights="plain")
        if self.inner:
            yield replace(self, inner=False)
        if len(self.inputs) > 1:
            yield replace(self, inputs=self.inputs[:-1])

    def operators(self) -> set[str]:
        """Return what the net is made of."""
        return {each.operator for each in self.steps}

    def without(self, operators: Collection[str]) -> Grown:
        """Return the net that is left without some operators."""
        left = tuple(each for each in self.steps if each.operator not in operators)
        return replace(self, steps=left)

    def is_usable(self) -> bool:
        """Whether it is a valid model that ONNX Runtime runs, to finite numbers."""
        from tests.models import run_model

        model = self._model
        if not model.graph.output or not self.samples(1):
            return False
        try:
            onnx.checker.check_model(model, full_check=True)
            parts = [run_model(model, self._fed(8, seed)) for seed in (1, 2)]
        except Exception:  # the runtime raises its own kinds
            return False
        return all(bool(np.isfinite(array).all()) for part in parts for array in part.values())

    def _fed(self, count: int, seed: int) -> Mapping[str, npt.NDArray[np.float32]]:
        return self.samples(count if self.dynamic else 1, seed=seed)


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, tensor.dtype, tensor.shape)


_INPUTS: tuple[tuple[int, ...], ...] = (
    (3, 8, 8),
    (4, 7, 9),
    (8, 6, 10),
    (4, 12, 3),
    (12,),
    (4, 16),
    (2, 3, 4, 5),
    (8, 2, 1, 8),
    (),
)


def grown_net(seed: int, most: int = 10) -> Grown:
    """Return a random net, of at most that many steps."""
    from tests.nets.makers import COMMON, MAKERS

    random = np.random.default_rng([seed, 2])
    dynamic = bool(random.random() < 0.6)
    shapes = _INPUTS if dynamic else _INPUTS[:-1]
    count = int(random.choice([1, 1, 1, 2, 3]))
    names = [*MAKERS, *COMMON]
    steps = [
        Step(names[int(random.integers(len(names)))], int(random.integers(1 << 30)))
        for _ in range(int(random.integers(2, most + 1)))
    ]
    return Grown(
        opset=int(random.choice(OPSETS)),
        inputs=tuple(shapes[int(k)] for k in random.integers(len(shapes), size=count)),
        dynamic=dynamic,
        steps=tuple(steps),
        fed=_regime(random, tuple(SAMPLES)),
        weights=_regime(random, tuple(WEIGHTS)),
        inner=bool(random.random() < 0.2),
    )


def _regime(random: np.random.Generator, names: Sequence[str]) -> str:
    return "plain" if random.random() < 0.4 else names[int(random.integers(len(names)))]
