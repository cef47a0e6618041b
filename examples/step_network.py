"""A network that has no gradient: steps in both hidden layers, and a posterior over all of its weights.

A unit that is on or off passes no gradient to the weights before it, so back-propagation cannot train them. Function values can: natural-gradient variational inference
asks only how likely the labels are under networks drawn from the posterior so far, a few hundred of them in one pass. What comes out is not one network
but a distribution over networks, which knows where it has seen no data.

Prints a table with the log score and the accuracy on 5,000 new points, beside a linear model, the prior, the single network at the posterior mean and the best score that
anybody could reach; writes step_network.png.

Run: ``python examples/step_network.py`` (a minute on one core; ``pip install "qbvi[torch,plots]"``).
"""

from __future__ import annotations

import math
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import qbvi
import qbvi.torch

NOISE = 0.2
CENTRE, UNIT = np.array([0.5, 0.25]), np.array([0.87, 0.5])


class Step(nn.Module):
    """On or off: 1 above zero, else -1."""

    def forward(self, x):
        """Compare."""
        return torch.where(x > 0, 1.0, -1.0)


def two_moons(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two half circles with noise, of about unit scale: points (n, 2) and labels (n, 1)."""
    rng = np.random.default_rng(seed)
    label = rng.random(n) < 0.5
    points = curve(label, np.pi * rng.random(n)) + NOISE * rng.standard_normal((n, 2))
    return torch.as_tensor((points - CENTRE) / UNIT).float(), torch.as_tensor(label[:, None]).float()


def curve(label: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """The half circle of a label."""
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return np.where(label[..., None], upper, [1.0, 0.5] - upper)


def true_probability(points: torch.Tensor) -> np.ndarray:
    """Probability of the label given the point, from the law that made the data: (n,)."""
    x = points.double().numpy() * UNIT + CENTRE
    angle = (np.arange(400) + 0.5) * math.pi / 400
    density = []
    for label in (True, False):
        distance = ((x[:, None] - curve(np.full(400, label), angle)) ** 2).sum(axis=2)
        density.append(np.exp(-0.5 * distance / NOISE**2).mean(axis=1))
    return density[0] / (density[0] + density[1])


def step_network() -> nn.Module:
    """Two hidden layers of units that are on or off: 281 weights."""
    return nn.Sequential(nn.Linear(2, 20), Step(), nn.Linear(20, 10), Step(), nn.Linear(10, 1))
