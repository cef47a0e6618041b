"""Statistical models with random data, as users write them."""

from __future__ import annotations

from .constructed import FAMILIES as CONSTRUCTED

FAMILIES = {make: kind for make, kind in CONSTRUCTED.items() if False}
