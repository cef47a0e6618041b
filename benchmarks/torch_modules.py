"""What a pass of a PyTorch module over all draws of a step costs: one draw after the other, all at once, compiled.

CPU time of one core, the best of seven. Run: ``OMP_NUM_THREADS=1 python benchmarks/torch_modules.py`` (a minute; compiling needs a C++ compiler).
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

import qbvi.torch


class Step(nn.Module):
    """On or off."""

    def forward(self, x):
        """Compare."""
        return torch.where(x > 0, 1.0, -1.0)


def problems():
    """Name, module, batch, loss, draws."""
    torch.manual_seed(1)
    steps = nn.Sequential(nn.Linear(2, 20), Step(), nn.Linear(20, 10), Step(), nn.Linear(10, 1))
    moons = torch.randn(400, 2), (torch.rand(400, 1) > 0.5).float()
    smooth = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    images = torch.randn(256, 64), torch.randint(10, (256,))
    yield "2-20-10-1 steps, 400 rows", steps, moons, nn.BCEWithLogitsLoss(), 100
    yield "2-20-10-1 steps, 400 rows", steps, moons, nn.BCEWithLogitsLoss(), 1000
    yield "64-64-10 tanh, 256 rows", smooth, images, nn.CrossEntropyLoss(), 200


def milliseconds(call, repeats=7):
    """CPU time of a call, the least of several."""
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def main():
    """Measure and print."""
    torch.set_num_threads(1)
    print(f"{'module and batch':28s}{'draws':>6s}{'looped':>10s}{'at once':>10s}{'compiled':>10s}{'compiling':>12s}")
    for name, net, batch, loss, n in problems():
        plain, compiled = (qbvi.torch.module_likelihood(net, loss, compile=compile) for compile in (False, True))
        rng = np.random.default_rng(1)
        draws = {key: torch.as_tensor(prior.sample(rng, n)) for key, prior in plain.prior.items()}
        single = [{key: value[s] for key, value in draws.items()} for s in range(n)]
        start = time.perf_counter()
        compiled(draws, batch)
        seconds = time.perf_counter() - start
        looped = milliseconds(lambda: [plain(one, batch) for one in single], 2)  # noqa: B023 - called at once
        times = [looped, *(milliseconds(lambda: f(draws, batch)) for f in (plain, compiled))]  # noqa: B023
        print(f"{name:28s}{n:6d}" + "".join(f"{t:7.1f} ms" for t in times) + f"{seconds:10.1f} s")


if __name__ == "__main__":
    main()
