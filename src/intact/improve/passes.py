"""Lists the improvement passes, and parses what a user asks of them: ``rounding{samples=128}``.

A rewrite makes another float graph that computes the same, a refinement another plan. Neither
changes what it is given. A pass measures each layer or block before and after, on samples that it
did not fit, and rolls back what did not help.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import msgspec

from intact._extras import is_installed, require
from intact.errors import UsageError, nearest
from intact.graph import Graph

_REQUEST = re.compile(r"\s*([A-Za-z0-9-]+)\s*(?:\{([^{}]*)\})?\s*")


class Stage(StrEnum):
    """The object that a pass changes."""

    REWRITE = "float model"
    REFINE = "plan"


class Number(msgspec.Struct, frozen=True):
    """An option that is a number.

    Attributes:
        meaning: One phrase.
        argument: The function's argument that takes it.
        least: The least value.
        whole: Whether it is a whole number.
    """

    meaning: str
    argument: str
    least: float = 1
    whole: bool = True

    def read(self, text: str) -> int | float:
        """Read it.

        Raises:
            ValueError: It is none, or too small.
        """
        found = int(text) if self.whole else float(text)
        # ``not >=``, because NaN is no number to go on with either.
        if not found >= self.least or found == float("inf"):
            raise ValueError(text)
        return found

    def __str__(self) -> str:
        """Say what is expected."""
        return f"a {'whole ' if self.whole else ''}number of at least {self.least:g}"


class Word(msgspec.Struct, frozen=True):
    """An option that is a text.

    Attributes:
        meaning: One phrase.
        argument: The function's argument that takes it.
    """

    meaning: str
    argument: str

    def read(self, text: str) -> str:
        """Take any text but an empty one."""
        if not text:
            raise ValueError(text)
        return text

    def __str__(self) -> str:
        """Say what is expected."""
        return "a text"


class Pass(msgspec.Struct, frozen=True):
    """One pass.

    Attributes:
        stage: What it changes.
        function: ``module:function``, imported when it runs. A rewrite is called with a plan with
            scales of the graph, a refinement with a plan with scales; then samples, ``report``
            (see `intact.plan.gains`) and the options by name.
        meaning: One sentence for the help.
        options: What a user may give, by name.
        prepares: Whether it may cost a little by itself and gain with the passes behind it: it is
            judged together with the next one.
        needs: A package that an extra brings; "" for none.
        data_free: ``module:function`` of a rewrite that needs neither plan nor samples: from a
            float graph to another. The search uses it.
    """

    stage: Stage
    function: str
    meaning: str
    options: Mapping[str, Number | Word] = {}
    prepares: bool = False
    needs: str = ""
    data_free: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether the package that it needs is there."""
        return not self.needs or is_installed(self.needs)

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        return _import(self.function)


EXPECTED_BIAS = "expected-bias"
"""The pass for models without data."""
_CHECK = Number("0 keeps what it did even if the outputs are not better", "", least=0)
"""The option that every pass has."""
_SAMPLES = Number("the most samples that are run", "most")
_LEARNING: Mapping[str, Number | Word] = {
    "samples": _SAMPLES,
    "steps": Number("steps for each block", "steps"),
    "seed": Number("of what is drawn at random", "seed", least=0),
    "device": Word("cpu, cuda or auto", "device"),
    "folder": Word("where finished blocks are kept, to go on from", "folder"),
}
"""The options of passes that learn."""

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "equalize": Pass(
            Stage.REWRITE,
            "intact.improve.rewrite.gate:equalize_blocks",
            "Channels of consecutive layers get weights of like size (DFQ)",
            {"samples": _SAMPLES},
            data_free="intact.improve.rewrite.equalize:equalize",
        ),
        "absorb": Pass(
            Stage.REWRITE,
            "intact.improve.rewrite.gate:absorb_biases",
            "Large biases are moved behind the activation, into the next layer (DFQ)",
            {"samples": _SAMPLES},
        ),
        "smooth": Pass(
            Stage.REWRITE,
            "intact.improve.rewrite.smooth:smooth_plan",
            "Outlying channels of activations are moved into the weights that read them",
            {"samples": _SAMPLES},
        ),
        "rotate": Pass(
            Stage.REWRITE,
            "intact.improve.rewrite.rotate:rotate_keys",
            "Keys in caches of codes are rotated so that few bits suffice, and queries back",
            {"samples": _SAMPLES},
        ),
        "widths": Pass(
            Stage.REFINE,
            "intact.improve.refine.widths:widen",
            "Weights in blocks that lose most for their size get wider codes",
            {
                "samples": _SAMPLES,
                "growth": Number("percent that weights may grow", "growth", least=0, whole=False),
            },
        ),
        "ranges": Pass(
            Stage.REFINE,
            "intact.improve.refine.ranges:refine_ranges",
            "Ranges of activations are those with the least error of what is computed from them",
            {"samples": _SAMPLES},
            prepares=True,
        ),
        "weight-scales": Pass(
            Stage.REFINE,
            "intact.improve.refine.weight_scales:refine_weight_scales",
            "Each channel's weight scale is the one with the best cosine of the layer's result",
            {"samples": _SAMPLES},
        ),
        "rounding": Pass(
            Stage.REFINE,
            "intact.improve.refine.rounding:refine_rounding",
            "Weights of a layer are rounded together, with scales and bias (GPTQ)",
            {"samples": _SAMPLES},
        ),
        "bias": Pass(
            Stage.REFINE,
            "intact.improve.refine.bias:refine_bias",
            "Biases make good what quantizing shifts in the mean of each channel (DFQ)",
            {"samples": _SAMPLES},
        ),
        EXPECTED_BIAS: Pass(
            Stage.REFINE,
            "intact.improve.refine.bias:correct_expected_bias",
            "Biases make good what rounding weights shifts, by the means that BatchNormalizations "
            "remember (DFQ)",
        ),
        "adaround": Pass(
            Stage.REFINE,
            "intact.improve.learn.reconstruct:by_layers",
            "Rounding is learned layer by layer (AdaRound)",
            _LEARNING,
            needs="torch",
        ),
        "reconstruct": Pass(
            Stage.REFINE,
            "intact.improve.learn.reconstruct:by_blocks",
            "Rounding and scales are learned block by block (BRECQ, QDrop)",
            _LEARNING,
            needs="torch",
        ),
    }
)
"""In the order in which they run."""


class Request(msgspec.Struct, frozen=True):
    """A pass that is asked for.

    Attributes:
        name: The name of the pass.
        options: What was given for it, by name.
    """

    name: str
    options: tuple[tuple[str, int | float | str], ...] = ()

    @staticmethod
    def of(text: str) -> Request:
        """Read ``name`` or ``name{key=value,key=value}``.

        Raises:
            UsageError: There is no such pass or option, or the value is wrong.
        """
        match = _REQUEST.fullmatch(text)
        name = "" if match is None else match[1].lower()
        if match is None or name not in PASSES:
            raise UsageError(f"--improve {text!r}", remedy=nearest(name or text, list(PASSES)))
        known = {**PASSES[name].options, "check": _CHECK}
        options = []
        for pair in filter(None, (part.strip() for part in (match[2] or "").split(","))):
            key, _, value = (part.strip() for part in pair.partition("="))
            if key not in known:
                message = f"--improve {text!r}: there is no option {key!r}"
                raise UsageError(message, remedy=nearest(key, list(known)))
            try:
                options.append((key, known[key].read(value)))
            except ValueError:
                wanted = f"give {known[key]}: {name}{{{key}=...}}"
                raise UsageError(f"--improve {text!r}: {key} is {value!r}", remedy=wanted) from None
        return Request(name, tuple(options))

    @property
    def arguments(self) -> dict[str, int | float | str]:
        """The options by the names of the function's arguments."""
        known = PASSES[self.name].options
        return {known[key].argument: value for key, value in self.options if key in known}

    @property
    def is_checked(self) -> bool:
        """Whether it is rolled back where the outputs are not better."""
        return dict(self.options).get("check", 1) != 0

    def __str__(self) -> str:
        """Write it as it is read."""
        if not self.options:
            return self.name
        return f"{self.name}{{{','.join(f'{key}={value}' for key, value in self.options)}}}"


def requests_of(texts: Iterable[str]) -> tuple[Request, ...]:
    """Read what is asked for, in the order in which the passes run, each once.

    Raises:
        UsageError: A name or an option is wrong, or a pass is asked for with two options.
        MissingExtraError: A pass needs a package that is not installed.
    """
    asked = dict.fromkeys(Request.of(text) for text in texts)
    found: dict[str, Request] = {}
    for each in asked:
        if each.name in found:
            raise UsageError(
                f"--improve {each} and --improve {found[each.name]}", remedy="leave one out"
            )
        if PASSES[each.name].needs:
            require(f"--improve {each.name}", [PASSES[each.name].needs], "train")
        found[each.name] = each
    # In the table's order and not that of the call: each pass builds on what the ones before left.
    return tuple(found[name] for name in PASSES if name in found)


def rewrite(graph: Graph, texts: Iterable[str]) -> Graph:
    """Apply rewrites that need neither plan nor samples to a float model.

    Raises:
        UsageError: A pass is another, or a name is wrong.
    """
    for request in requests_of(texts):
        function = PASSES[request.name].data_free
        if not function:
            raise UsageError(
                f"--improve {request.name} follows after the scales",
                remedy="leave it out of the search",
            )
        graph = _import(function)(graph)
    return graph


def _import(function: str) -> Callable[..., Any]:
    # Named as text, so that the table costs no import: some passes need torch.
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
