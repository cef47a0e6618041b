"""A posterior over the weights of a network that has no gradient.

Both hidden layers have step activations. A unit that is on or off passes no gradient to the
weights before it, so back-propagation cannot train them. Function values can. Each step evaluates
the likelihood of the labels under a hundred networks drawn from the current posterior, all in one
pass. The result is a distribution over networks. It is uncertain where there were no data.

The table shows the log score and the accuracy on 5,000 new points, for the posterior and for

- the prior,
- a linear model,
- the single network at the posterior mean,
- a smooth network of the same size trained by its gradient,
- the true probabilities, which no method can beat on average.

Run: ``python examples/step_network.py`` (half a minute on one core; needs ``pip install
"qbvi[torch,plots]"``). The picture is ``step_network.png``.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

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


def network(activation: nn.Module) -> nn.Module:
    """Two hidden layers: 281 weights."""
    return nn.Sequential(nn.Linear(2, 20), activation, nn.Linear(20, 10), activation, nn.Linear(10, 1))


def smooth_probability(points: torch.Tensor, labels: torch.Tensor, new: torch.Tensor) -> np.ndarray:
    """Probabilities at new points of a smooth network of the same size, at its mode, by Adam."""
    torch.manual_seed(1)
    net = network(nn.Tanh())
    prior = qbvi.torch.module_likelihood(net, nn.BCEWithLogitsLoss()).prior
    scale = {name: float(p.scale.flat[0]) for name, p in prior.items()}
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(1000):
        optimiser.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(net(points), labels, reduction="sum")
        penalty = sum(((w / scale[name]) ** 2).sum() / 2 for name, w in net.named_parameters())
        (loss + penalty).backward()
        optimiser.step()
    with torch.no_grad():
        return torch.sigmoid(net(new))[:, 0].double().numpy()


def largest_gradient(net: nn.Module, points: torch.Tensor, labels: torch.Tensor) -> float:
    """Of the loss by the weights of the hidden layers, as back-propagation sees it."""
    nn.functional.binary_cross_entropy_with_logits(net(points), labels).backward()
    hidden = [w.grad for name, w in net.named_parameters() if not name.startswith("4")]
    return max(0.0 if g is None else float(g.abs().max()) for g in hidden)


def report(name: str, probability: np.ndarray, labels: torch.Tensor) -> None:
    """One row of the table: mean log score and accuracy of the probabilities of new points."""
    truth = labels[:, 0].numpy() > 0
    right = np.clip(np.where(truth, probability, 1 - probability), 1e-12, 1.0)
    print(f"{name:44s}{np.log(right).mean():10.3f}{100 * np.mean(right > 0.5):10.1f} %")


def by_uncertainty(predicted: qbvi.torch.Prediction, labels: torch.Tensor) -> tuple[float, float]:
    """Accuracy in per cent where the networks agree, and on the tenth where they differ most."""
    right = (predicted.mean > 0.5) == (labels.numpy() > 0)
    unsure = predicted.sd > np.quantile(predicted.sd, 0.9)
    return 100 * right[~unsure].mean(), 100 * right[unsure].mean()


def picture(
    likelihood: qbvi.torch.ModuleLikelihood, fit: qbvi.Fit, train: tuple[torch.Tensor, torch.Tensor], out: Path
) -> None:
    """Draw probability, its uncertainty, and the boundaries of single networks."""
    axis = np.linspace(-4, 4, 120)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    predicted = likelihood.predict(fit, grid, n_draws=400)
    shape = (len(axis), len(axis))
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", sharey=True)
    shown = [
        ("probability of the upper moon", predicted.mean, "RdBu"),
        ("its standard deviation", predicted.sd, "magma"),
    ]
    for panel, (title, values, colours) in zip(panels, shown, strict=False):
        image = panel.pcolormesh(axis, axis, values[:, 0].reshape(shape), cmap=colours, shading="gouraud")
        figure.colorbar(image, ax=panel, shrink=0.9)
        panel.set_title(title)
    for draw in predicted.draws[:30]:
        panels[2].contour(axis, axis, draw[:, 0].reshape(shape), levels=[0.5], colors="black", linewidths=0.4)
    panels[2].set_title("boundaries of 30 networks")
    points, label = train[0].numpy()[:400], train[1].numpy()[:400, 0] > 0
    for panel, dark in zip(panels, (True, False, True), strict=True):
        for chosen, colour in ((label, "tab:blue"), (~label, "tab:red")):
            panel.scatter(*points[chosen].T, s=4, color=colour if dark else "white", alpha=0.7, linewidths=0)
        panel.set_aspect("equal")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "step_network.png", dpi=80)


def table(likelihood: qbvi.torch.ModuleLikelihood, fit: qbvi.Fit, train: tuple, new: tuple) -> None:
    """Score the posterior and what it is compared with."""
    line = qbvi.torch.module_likelihood(nn.Linear(2, 1), nn.BCEWithLogitsLoss())
    straight = qbvi.fit(line, line.prior, vectorized=True, data=train, seed=1)
    rng = np.random.default_rng(3)
    prior = {name: law.sample(rng, 1000) for name, law in likelihood.prior.items()}
    single = {name: mean[None] for name, mean in fit.mean.items()}
    print(f"{'on 5,000 new points':44s}{'log score':>10s}{'accuracy':>12s}")
    report("prior of the step network", likelihood.predict(prior, new[0]).mean[:, 0], new[1])
    report("linear model", line.predict(straight, new[0]).mean[:, 0], new[1])
    report("step network, posterior", likelihood.predict(fit, new[0]).mean[:, 0], new[1])
    report("step network, its mean weights alone", likelihood.predict(single, new[0]).mean[:, 0], new[1])
    report("smooth network, trained by gradient", smooth_probability(*train, new[0]), new[1])
    report("the law that made the data", true_probability(new[0]), new[1])


def main() -> None:
    """Fit, score and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    out = parser.parse_args().out
    train, new = two_moons(2000, seed=1), two_moons(5000, seed=2)
    net = network(Step())
    print(f"largest gradient of a weight before a step: {largest_gradient(net, *train)}\n")
    loader = DataLoader(TensorDataset(*train), batch_size=400, shuffle=True)
    likelihood = qbvi.torch.module_likelihood(net, nn.BCEWithLogitsLoss())
    start = time.perf_counter()
    fit = qbvi.fit(
        likelihood, likelihood.prior, vectorized=True, data=loader, family="diagonal", backend="torch", seed=1
    )
    seconds = time.perf_counter() - start
    table(likelihood, fit, train, new)
    sure, unsure = by_uncertainty(likelihood.predict(fit, new[0]), new[1])
    print(f"\nof the tenth on which the networks differ most, {unsure:.1f} % are right; of all others, {sure:.1f} %")
    print(f"{fit.n_evals:,} networks in {seconds:.0f} s, {len(fit.trace)} steps; {fit.stop_reason}")
    picture(likelihood, fit, train, out)


if __name__ == "__main__":
    main()
