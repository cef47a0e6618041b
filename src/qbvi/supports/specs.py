"""Supports by name, and rebuilt from their specifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qbvi.supports.base import Support, UserDefinedError, from_json
from qbvi.supports.bijection import Bijection
from qbvi.supports.cube import UnitCube
from qbvi.supports.elementwise import Interval, Periodic, Positive, Real
from qbvi.supports.matrices import PositiveDefinite
from qbvi.supports.vectors import Ordered, Simplex
from qbvi.supports.whole_numbers import WholeNumbers

__all__ = ["SUPPORTS", "support_from_spec"]

SUPPORTS: dict[str, type[Support]] = {
    kind.__name__: kind
    for kind in (
        Real,
        Positive,
        Interval,
        Periodic,
        Simplex,
        Ordered,
        PositiveDefinite,
        WholeNumbers,
        Bijection,
        UnitCube,
    )
}


def support_from_spec(spec: Mapping[str, Any]) -> Support:
    """Rebuild a support from the output of `Support.to_spec`.

    Examples
    --------
    >>> support_from_spec(Interval(0.0, float("inf")).to_spec())
    Interval(low=0.0, high=inf)
    """
    kind = spec.get("kind")
    if kind not in SUPPORTS:
        msg = f"`kind` of a support must be one of {', '.join(SUPPORTS)}, got {kind!r}"
        raise ValueError(msg)
    if kind in ("Bijection", "UnitCube"):
        msg = "the map is user-defined and files hold no code"
        raise UserDefinedError(msg)
    return SUPPORTS[kind](**{name: from_json(value) for name, value in spec.items() if name != "kind"})
