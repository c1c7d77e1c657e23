"""Picks the columns that a model takes out of table rows, as Hugging Face's datasets have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from intact.data.arrays import is_array, shape_of
from intact.data.images.decode import is_picture
from intact.data.labels import is_reference
from intact.data.signature import InputSpec
from intact.errors import DataError


class Columns:
    """Picks the columns that a model takes out of rows.

    Of a model with one input whose name is no column, that is the one column of images, or else the
    one of arrays or lists with a dimension less than the input. The first row decides.

    Args:
        specs: The model's inputs.
        kept: Names of columns to keep: inputs by any name, labels, a mask.
    """

    def __init__(self, specs: Mapping[str, InputSpec], kept: Collection[str]) -> None:
        self._specs, self._kept = specs, frozenset(kept)
        self._chosen = ""

    def of(self, where: str, row: object) -> object:
        """Return a row with the columns that are taken, by input name.

        Raises:
            DataError: No column, or more than one, is like the input.
        """
        if not isinstance(row, Mapping):  # reported when read
            return row
        taken = {n: v for n, v in row.items() if n in self._kept or is_reference(n, self._specs)}
        if len(self._specs) > 1 or taken.keys() & self._specs.keys():
            return taken
        ((name, spec),) = self._specs.items()
        others = {n: v for n, v in row.items() if n not in taken}
        # Told once: a later row with an empty image must not lead to another column.
        self._chosen = self._chosen or _column_like(where, name, spec, others)
        if self._chosen in row:
            taken[name] = row[self._chosen]
        return taken


def _column_like(where: str, name: str, spec: InputSpec, row: Mapping[str, Any]) -> str:
    pictures = [key for key, value in row.items() if is_picture(value)]
    # Images first: a table of them often has boxes or sizes as arrays as well.
    found = pictures or [
        key
        for key, value in row.items()
        if (is_array(value) or isinstance(value, list))
        and len(shape_of(value)) + 1 == len(spec.shape)
    ]
    if len(found) == 1:
        return found[0]
    what = f"the columns {', '.join(map(repr, row))}" if row else "no columns"
    example = found[0] if found else next(iter(row), "column")
    raise DataError(
        f"{where} has {what}, of which {'several are' if found else 'none is'} like input {name!r}",
        remedy=f"name one as the input: data.rename_column({example!r}, {name!r})",
    )
