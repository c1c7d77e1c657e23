"""Holds weights of few bits that were rounded beforehand, once for each width.

All candidates share them, also in workers. They lie in a file beside the log: a logged strategy
names those that it has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact._files import whole_file
from intact._memo import Forgetful, Memo
from intact.calibrate.scales.bias import BiasedLayer, rescale_bias
from intact.config import QuantState, TensorQuantConfig
from intact.data.archive import read_npz
from intact.errors import DataError, IntactError, PlanError
from intact.graph import bias_slot
from intact.numerics.affine_params import QuantParams
from intact.plan import Note, NoteKind, QuantizedGraph, TensorEnd
from intact.plan.stored_weights import is_in_blocks

Array: TypeAlias = npt.NDArray[Any]

SUFFIX = ".rounding.npz"
"""Suffix of the file beside a log."""
_LIST = "list"


@dataclass(frozen=True)
class RoundedWeight:
    """How a weight is rounded at one width.

    Attributes:
        scale: float32, ``[]`` or ``[channels]``.
        codes: Integers, shaped as the weight is stored.
        shift: float64, what the bias moves by, shaped like it; None leaves it as it is.
    """

    scale: Array
    codes: Array
    shift: Array | None = None

    @cached_property
    def hash(self) -> str:
        """SHA-256 of its numbers, in hexadecimal."""
        digest = hashlib.sha256()
        for array in self.arrays.values():
            # Little-endian, so that machines of both orders agree.
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            # The shape too: the same bytes in another shape are another weight.
            digest.update(json.dumps([little.dtype.str, array.shape]).encode())
            digest.update(little.tobytes())
        return digest.hexdigest()

    @cached_property
    def range(self) -> tuple[int, int]:
        """The least and the largest integer; of weights that are not empty."""
        return int(self.codes.min()), int(self.codes.max())

    @property
    def arrays(self) -> dict[str, Array]:
        """Its arrays by name."""
        shift = {} if self.shift is None else {"shift": self.shift}
        return {"scale": self.scale, "codes": self.codes, **shift}


class Place(NamedTuple):
    """A weight at one width.

    Attributes:
        end: Where a layer reads it.
        bits: The width.
    """

    end: TensorEnd
    bits: int


class _Fit(NamedTuple):
    """The outcome of putting a rounded weight into a plan.

    Attributes:
        params: Scale and zero point by end: of the weight, and of its bias where it has one.
        codes: The stored integers by end; none where the weight stays rounded to nearest.
    """

    params: Mapping[TensorEnd, QuantParams | None]
    codes: Mapping[TensorEnd, Array]


class Roundings:
    """The rounded weights of a search.

    Args:
        found: The rounded weights by layer and width.
        observer: Name in plans of what chose their scales.
    """

    def __init__(
        self, found: Mapping[Place, RoundedWeight] | None = None, observer: str = ""
    ) -> None:
        self.found = dict(found or {})
        self.observer = observer
        # In the order in which they were found, which is that of the graph.
        self._ends = tuple(dict.fromkeys(place.end for place in self.found))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all of them, in hexadecimal; "" where there are none."""
        if not self.found:
            return ""
        rows = [[str(end), bits, each.hash] for (end, bits), each in self.found.items()]
        return hashlib.sha256(json.dumps([self.observer, rows]).encode()).hexdigest()

    def apply(self, plan: QuantizedGraph, memo: Memo | None = None) -> QuantizedGraph:
        """Put the integers of weights that are here into a plan with scales that is nobody else's.

        A weight whose scale would have to be larger for its bias stays rounded to nearest.

        Args:
            plan: The plan.
            memo: What former calls with plans of the same graph and target computed.
        """
        memo = Forgetful() if memo is None else memo
        for end in self._ends:
            config = plan.configs.get(end)
            known = None if config is None else self.found.get(Place(end, config.bits))
            if config is None or known is None:
                continue
            written, read = memo(("layer", end), partial(_ends_of, plan.graph.node(end.node), end))
            configs = [plan.configs[each] for each in read]
            # All that the outcome depends on: how the weight is shared, and grid, scale and state
            # of input, weight and bias.
            key = (end, config.bits, len(config.group()), *((c.key, c.state) for c in configs))
            fitted = memo(key, partial(self._fit, plan, end, written, known))
            for each, params in fitted.params.items():
                # Already checked when they were computed; `set_params` would do it for each
                # candidate.
                if params is not None:
                    plan.configs[each].set_checked(params)
            self._store(plan, end, fitted.codes)
        return self._with_note(plan)

    def restore(self, plan: QuantizedGraph, names: Mapping[str, str]) -> QuantizedGraph:
        """Put the integers that a strategy names into its plan, which has their scales.

        Args:
            plan: Nobody else's.
            names: The hash of each, by the end.

        Raises:
            PlanError: They are not here, or do not fit.
        """
        for name, expected in names.items():
            end = TensorEnd.parse(name)
            config = plan.configs.get(end)
            known = None if config is None else self.found.get(Place(end, config.bits))
            if config is None or known is None or known.hash != expected:
                raise PlanError(
                    f"the rounded weight that the strategy has at {name!r} is not given",
                    remedy=f"put the search's file *{SUFFIX} beside its log again",
                )
            reason = _misfit(plan, end, known)
            if is_in_blocks(config) and not reason:  # a strategy has no scales of blocks
                config.set_params(known.scale, config.offset)
            if reason or not np.array_equal(np.asarray(config.scale), known.scale):
                raise PlanError(
                    f"the strategy's rounded weight at {name!r}: {reason or 'another scale'}",
                    remedy="give the target and the options that were searched with",
                )
            # The plan has the scales of its log; fitting the bias anew could change them.
            self._bake(plan, end, known)
        return self._with_note(plan)

    def without(self, plan: QuantizedGraph) -> QuantizedGraph:
        """Return a plan without the integers that `apply` put into it: it quantizes the floats.

        All other configs are those of the plan itself.
        """
        # A shallow copy: only the configs that are replaced differ from the plan's.
        configs, baked = dict(plan.configs), dict(plan.baked)
        for end in filter(plan.baked.__contains__, self._ends):
            owners = [end]
            if self.found[Place(end, configs[end].bits)].shift is not None:
                owners.append(_bias(plan, end)[0])
            for each in owners:
                configs[each] = plan.configs[each].unbaked()
                del baked[each]
        return replace(plan, configs=configs, baked=baked)

    def named(self, plan: QuantizedGraph) -> dict[str, str]:
        """Return the hashes of those that a plan has, by the end."""
        places = (Place(end, plan.configs[end].bits) for end in self._ends if end in plan.baked)
        return {str(place.end): self.found[place].hash for place in places}

    def _fit(
        self,
        plan: QuantizedGraph,
        end: TensorEnd,
        written: Sequence[TensorEnd],
        known: RoundedWeight,
    ) -> _Fit:
        """Put a rounded weight into a copy of the plan's configs that it changes, if it fits."""
        if _misfit(plan, end, known):
            return _Fit({}, {})
        # Copies, because the outcome is remembered and put into other plans too.
        own = {each: plan.configs[each].copy() for each in written}
        part = replace(plan, configs={**plan.configs, **own}, baked={})
        self._put(part, end, own[end], known)
        return _Fit({each: config.params for each, config in own.items()}, part.baked)

    def _put(
        self, plan: QuantizedGraph, end: TensorEnd, config: TensorQuantConfig, known: RoundedWeight
    ) -> None:
        node, before, observer = plan.graph.node(end.node), config.params, config.observer
        config.set_params(known.scale, config.offset)
        config.observer = self.observer
        rescale_bias(plan, node)
        # `rescale_bias` raises the weight's scale where the bias would overflow. The integers are
        # those of the smaller one, so the weight then goes back to rounding to nearest.
        if np.array_equal(np.asarray(config.scale), known.scale):
            self._bake(plan, end, known)
        elif before is not None:
            config.set_params(*before)
            config.observer = observer
            rescale_bias(plan, node)

    def _bake(self, plan: QuantizedGraph, end: TensorEnd, known: RoundedWeight) -> None:
        codes = {end: known.codes}
        if known.shift is not None:
            bias_end, bias_config, bias = _bias(plan, end)
            # In float64, so that the bias is rounded once, to its integers.
            values: Array = bias.astype(np.float64) + known.shift
            codes[bias_end] = bias_config.quantize(values)
        self._store(plan, end, codes)

    def _store(
        self, plan: QuantizedGraph, weight: TensorEnd, codes: Mapping[TensorEnd, Array]
    ) -> None:
        """Store the integers of a weight and of its bias, where there are some."""
        for end, integers in codes.items():
            is_weight = end == weight
            config = plan.configs[end]
            if is_weight:
                config.observer = self.observer
            config.transition(QuantState.BAKED if is_weight else QuantState.PASSIVE_BAKED)
            plan.baked[end] = integers

    def _with_note(self, plan: QuantizedGraph) -> QuantizedGraph:
        count = sum(end in plan.baked for end in self._ends)
        if not count:
            return plan
        message = f"the weights of {count} layer(s) are rounded by second moments of their inputs"
        return plan.with_notes((Note(NoteKind.CALIBRATION, "", message),))

    # ---- files -------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write the file; it is there whole, or not at all.

        Raises:
            OutputError: It cannot be written.
        """
        arrays: dict[str, Array] = {}
        rows = []
        for number, ((end, bits), each) in enumerate(self.found.items()):
            rows.append([str(end), bits])
            arrays |= {f"{number}.{name}": array for name, array in each.arrays.items()}
        listed = json.dumps({"observer": self.observer, "places": rows}).encode()
        named = {_LIST: np.frombuffer(listed, np.uint8)}
        with whole_file(path, "give a log on a disk with room") as file:
            np.savez(file, allow_pickle=False, **named, **arrays)

    @staticmethod
    def load(path: Path) -> Roundings:
        """Read a file that ``save`` wrote; its arrays are mapped into memory.

        Raises:
            DataError: It is missing or damaged.
        """
        try:
            arrays = read_npz(path)
            document = json.loads(arrays[_LIST].tobytes())
            return Roundings(dict(_read(document["places"], arrays)), str(document["observer"]))
        except IntactError:
            # Errors of the package say already what to do.
            raise
        except FileNotFoundError as error:
            raise DataError(
                f"{path} is missing: the rounded weights of the log beside it",
                remedy="put it there again",
            ) from error
        except Exception as error:  # of zipfile, json and numpy, a dozen unrelated classes
            reason = str(error) or type(error).__name__
            raise DataError(
                f"{path}: cannot be read as rounded weights ({reason})",
                remedy="search again, with a new log",
            ) from error


def beside(log: Path) -> Path:
    """Return where the rounded weights of a log are."""
    return log.with_suffix(SUFFIX)


def _read(rows: Any, arrays: Mapping[str, Array]) -> Iterator[tuple[Place, RoundedWeight]]:
    for number, (end, bits) in enumerate(rows):
        scale, codes = arrays[f"{number}.scale"], arrays[f"{number}.codes"]
        # The file may be damaged or anyone's: types are checked here, shapes and ranges where a
        # weight is put into a plan.
        shift = arrays.get(f"{number}.shift")
        if scale.dtype != np.float32 or codes.dtype.kind not in "iu" or codes.dtype.itemsize > 4:
            raise ValueError(f"{scale.dtype} and {codes.dtype} at {end}")
        if shift is not None and shift.dtype != np.float64:
            raise ValueError(f"{shift.dtype} at {end}")
        yield Place(TensorEnd.parse(end), int(bits)), RoundedWeight(scale, codes, shift)


def _ends_of(node: ir.Node, end: TensorEnd) -> tuple[tuple[TensorEnd, ...], tuple[TensorEnd, ...]]:
    """Return the ends that rounding a weight writes, and those that it depends on."""
    layer = BiasedLayer.of(node)
    written = (end,) if layer is None else (end, layer.bias)
    return written, written if layer is None or layer.data is None else (*written, layer.data)


def _misfit(plan: QuantizedGraph, end: TensorEnd, known: RoundedWeight) -> str:
    """Say why a weight cannot be put into a plan; "" where it can."""
    config, graph = plan.configs[end], plan.graph
    weight = graph.constant(graph.node(end.node).inputs[end.slot])
    # A scale that other ends share is not this weight's alone to change.
    if config.state is not QuantState.ACTIVATED or len(config.group()) > 1:
        return "it is not quantized by itself"
    scale = config.scale
    shapes = () if weight is None or scale is None else (weight.shape, scale.shape)
    if shapes != (known.codes.shape, known.scale.shape) or not known.codes.size:
        return "another shape"
    # Behind the comparison of shapes, which rules out empty weights: these have no least.
    least, most = known.range
    if least < config.quant_min or most > config.quant_max:
        return "integers out of range"
    return "" if known.shift is None else _misfit_of_bias(plan, end, known.shift)


def _misfit_of_bias(plan: QuantizedGraph, end: TensorEnd, shift: Array) -> str:
    slot = bias_slot(plan.graph.node(end.node))
    owner = None if slot is None else plan.configs.get(TensorEnd.input(end.node, slot))
    if owner is None or owner.state is not QuantState.PASSIVE:
        return "its bias has no integers of its own"
    return "" if _bias(plan, end)[2].shape == shift.shape else "a bias of another shape"


def _bias(plan: QuantizedGraph, end: TensorEnd) -> tuple[TensorEnd, TensorQuantConfig, Array]:
    """Return end, config and numbers of the bias of a layer that has one."""
    node = plan.graph.node(end.node)
    bias = TensorEnd.input(end.node, bias_slot(node) or 0)
    array = plan.graph.constant(node.inputs[bias.slot])
    return bias, plan.configs[bias], np.zeros(0) if array is None else array
