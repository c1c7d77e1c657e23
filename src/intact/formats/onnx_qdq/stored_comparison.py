"""The weights of float nodes in a written model, and the rows looked up, against the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import PlanError
from intact.formats.base.comparison import LayerComparison
from intact.formats.base.format import Feeds
from intact.formats.onnx_qdq.write import QDQ_FILE, QdqModel
from intact.plan import Codes, QuantizedGraph, TensorEnd, quantization_points


class StoredComparison:
    """Compares integers that no layer of integers shows.

    Weights are compared as the file has them, once. Rows of tables are compared as the runtime
    looked them up.

    Args:
        plan: The plan.
        exported: What was written from it.

    Attributes:
        layers: What was found, by the ends of the plan.
        watched: Names of the values that the runtime has to show: what was looked up by the end of
            the table, indices by the end where the node reads them.

    Raises:
        PlanError: The model lacks a constant.
    """

    def __init__(self, plan: QuantizedGraph, exported: QdqModel) -> None:
        self._exported = exported
        self._tables: dict[TensorEnd, Codes] = {}
        self._found: dict[TensorEnd, LayerComparison] = {}
        self.watched: dict[TensorEnd, str] = {}
        inputs = {str(value.name) for value in exported.model.graph.inputs}
        for point in quantization_points(plan):
            for node, slot in point.readers:
                end = TensorEnd.input(str(node.name), slot)
                if end not in exported.stored:
                    continue
                expected = point.constant_codes()
                if end not in exported.gathered:
                    self._weight(end, expected)
                    continue
                self._tables[end] = expected
                self._found[end] = LayerComparison(str(end), operation="Gather of codes")
                at = exported.gathered[end]
                self.watched[end] = at.codes
                if at.indices not in inputs:
                    self.watched[_indices_end(end)] = at.indices

    @property
    def layers(self) -> list[LayerComparison]:
        """What was found, in the order of the plan."""
        return list(self._found.values())

    def add(self, feeds: Feeds, shown: Mapping[TensorEnd, npt.NDArray[Any]]) -> None:
        """Compare the rows that one batch looked up."""
        for end, table in self._tables.items():
            at = self._exported.gathered[end]
            indices = shown[_indices_end(end)] if _indices_end(end) in shown else feeds[at.indices]
            rows = np.take(table, indices, at.axis).astype(np.int64)
            self._found[end].add(shown[end].astype(np.int64), rows)

    def _weight(self, end: TensorEnd, expected: Codes) -> None:
        name = self._exported.stored[end]
        stored = self._exported.model.graph.initializers.get(name)
        if stored is None or stored.const_value is None:
            raise PlanError(
                f"{QDQ_FILE}: not the model of this plan, it has no constant {name!r}",
                remedy="quantize again",
            )
        found = LayerComparison(str(end), operation="weight of a float node")
        found.add(stored.const_value.numpy().astype(np.int64), expected.astype(np.int64))
        self._found[end] = found


def _indices_end(table: TensorEnd) -> TensorEnd:
    return TensorEnd.input(table.node, 1)
