r"""Supports of parameters: maps from R^k to the sets where constrained values live.

The sets are the real line, half lines, intervals, simplexes, ordered vectors, positive definite
matrices, and sets given by a user's own map. A support maps an unconstrained ``u (n, k)`` to
constrained values ``x (n, *shape)``. It also gives the inverse map and, for each row,

.. math:: \log |\partial x / \partial u|

The maps saturate instead of overflowing: for every ``u``, ``x`` is finite and in the closed
support. A whole number is the image of an interval, its cell.
"""

from qbvi.supports.base import Elementwise, Support, UserDefinedError
from qbvi.supports.bijection import Bijection
from qbvi.supports.cube import UnitCube
from qbvi.supports.elementwise import Interval, Periodic, Positive, Real
from qbvi.supports.maps import Shape, bounded_exp, bounded_log, like, softplus
from qbvi.supports.matrices import PositiveDefinite
from qbvi.supports.specs import SUPPORTS, support_from_spec
from qbvi.supports.vectors import Ordered, Simplex
from qbvi.supports.whole_numbers import WholeNumbers

__all__ = [
    "SUPPORTS",
    "Bijection",
    "Elementwise",
    "Interval",
    "Ordered",
    "Periodic",
    "Positive",
    "PositiveDefinite",
    "Real",
    "Shape",
    "Simplex",
    "Support",
    "UnitCube",
    "UserDefinedError",
    "WholeNumbers",
    "bounded_exp",
    "bounded_log",
    "like",
    "softplus",
    "support_from_spec",
]
