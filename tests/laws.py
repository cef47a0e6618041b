"""The registry of families that every law is tested on: a new family is one line here."""

import numpy as np

from qbvi.families import DiagonalGaussian, Gaussian, GaussianProduct


def members(xp, rng):
    """Yield (name, family, q) with generic members, none of them centred or isotropic."""
    for name, family in FAMILIES.items():
        d = family.dim
        root = rng.standard_normal((d, d)) / np.sqrt(d) + np.eye(d)
        yield name, family, family.from_moments(xp.asarray(rng.standard_normal(d)), xp.asarray(root @ root.T))


FAMILIES = {
    "full-1": Gaussian(1),
    "full-4": Gaussian(4),
    "diagonal-3": DiagonalGaussian(3),
    "blocks": GaussianProduct((Gaussian(2), DiagonalGaussian(1), Gaussian(2)), ((3, 0), (4,), (1, 2))),
}
