"""Modules as likelihoods, loaders as data, against closed forms and loops."""

import functools
import pickle
import subprocess
import sys

import numpy as np
import pytest

import qbvi

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install "qbvi[torch]"')

from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from qbvi.evaluate.loaders import LoaderBatches
from qbvi.torch import Prediction, module_likelihood

pytestmark = pytest.mark.backends

N, SD = 60, 0.5


class Step(nn.Module):
    def forward(self, x):
        return torch.heaviside(x, torch.zeros((), dtype=x.dtype))


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(3)
    X = torch.randn(N, 3, generator=g, dtype=torch.float64)
    y = X @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3
    return X, y + SD * torch.randn(N, 1, generator=g, dtype=torch.float64)


def linear():
    return module_likelihood(nn.Linear(3, 1).double(), nn.MSELoss(), prior={"weight": 2.0}, scale=1 / (2 * SD**2))


def step_net(loss=None):
    net = nn.Sequential(nn.Linear(3, 6), Step(), nn.Linear(6, 4)).double()
    return module_likelihood(net, nn.CrossEntropyLoss() if loss is None else loss)


def drawn(likelihood, n, seed=1):
    rng = np.random.default_rng(seed)
    return {name: prior.sample(rng, n) for name, prior in likelihood.prior.items()}


def linear_values(draws, X, y):
    outputs = np.einsum("nk,sok->sno", X.numpy(), draws["weight"]) + draws["bias"][:, None]
    return -((outputs - y.numpy()) ** 2).sum((1, 2))


def exact(X, y):
    """Mean and covariance of weights and bias under a Gaussian prior and Gaussian noise."""
    design = np.column_stack([X.numpy(), np.ones(len(X))])
    precision = np.diag([0.25, 0.25, 0.25, 1.0]) + design.T @ design / SD**2
    cov = np.linalg.inv(precision)
    return cov @ (design.T @ y.numpy()[:, 0]) / SD**2, cov


# --- the likelihood --------------------------------------------------------------------------------------------------


def test_linear_module_with_squared_error_has_its_closed_form_posterior(data):
    likelihood = linear()
    fit = qbvi.fit(likelihood, likelihood.prior, vectorized=True, data=data, family="full", seed=1)
    mean, cov = exact(*data)
    assert fit.converged
    # A Gaussian target is fitted exactly by the regression, up to rounding.
    np.testing.assert_allclose(np.append(fit.mean["weight"], fit.mean["bias"]), mean, atol=1e-6)
    np.testing.assert_allclose(fit.unconstrained[1], cov, rtol=1e-4, atol=1e-8)


def test_all_draws_at_once_are_one_after_the_other(data):
    likelihood = step_net()
    batch = (data[0], torch.arange(N) % 4)
    draws = drawn(likelihood, 7)
    looped = [float(likelihood({k: v[s] for k, v in draws.items()}, batch)) for s in range(7)]
    np.testing.assert_allclose(likelihood(draws, batch).numpy(), looped, rtol=1e-12)
    by_hand = []
    for s in range(7):
        hidden = (batch[0].numpy() @ draws["0.weight"][s].T + draws["0.bias"][s] > 0).astype(float)
        logits = hidden @ draws["2.weight"][s].T + draws["2.bias"][s]
        picked = logits[np.arange(N), batch[1].numpy()]
        by_hand.append(np.sum(picked - np.log(np.exp(logits).sum(1))))
    np.testing.assert_allclose(looped, by_hand, rtol=1e-12)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
def test_chunks_change_nothing(data, chunk_size):
    likelihood = step_net()
    chunked = module_likelihood(likelihood.net, nn.CrossEntropyLoss(), chunk_size=chunk_size)
    batch, draws = (data[0], torch.arange(N) % 4), drawn(likelihood, 7)
    np.testing.assert_allclose(chunked(draws, batch), likelihood(draws, batch), rtol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_of_the_loss_play_no_part(data, reduction):
    batch = (data[0], torch.arange(N) % 4)
    reference = step_net()
    module = module_likelihood(reference.net, nn.CrossEntropyLoss(reduction=reduction))
    draws = drawn(reference, 3)
    functions = nn.functional.cross_entropy, lambda output, target: -torch.log_softmax(output, 1)[range(N), target]
    for loss in functions:
        np.testing.assert_allclose(module_likelihood(reference.net, loss)(draws, batch), module(draws, batch))
    one = {name: value[0] for name, value in draws.items()}
    torch.testing.assert_close(module.terms(one, batch).sum(), module(one, batch))


def test_losses_of_all_outputs_of_a_row_are_summed(data):
    likelihood = module_likelihood(nn.Linear(3, 2).double(), nn.MSELoss())
    draws = drawn(likelihood, 4)
    target = torch.cat([data[1], -data[1]], 1)
    np.testing.assert_allclose(likelihood(draws, (data[0], target)), linear_values(draws, data[0], target))
    assert likelihood.terms(draws, (data[0], target)).shape == (4, N)


def test_modules_that_vmap_cannot_follow_go_one_by_one():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.last = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)

        def forward(self, x):
            return self.last(self.cell(x)[0][:, -1])

    net, batch = Recurrent(), (torch.randn(5, 4, 2), torch.randn(5, 1))
    mapped, single = (module_likelihood(net, nn.MSELoss(), chunk_size=size) for size in (None, 1))
    draws = drawn(single, 3)
    with pytest.raises(RuntimeError, match="pass chunk_size=1 to go through them one by one"):
        mapped(draws, batch)
    for s, value in enumerate(single(draws, batch)):
        torch.nn.utils.vector_to_parameters(
            torch.cat([torch.as_tensor(draws[name][s]).flatten() for name in draws]).float(), net.parameters()
        )
        with torch.no_grad():
            np.testing.assert_allclose(value, -((net(batch[0]) - batch[1]) ** 2).sum(), rtol=1e-5)


def test_a_checkpoint_knows_likelihood_and_tensors_again(data, tmp_path):
    likelihood = linear()
    method = qbvi.QBVI(n_samples=20, stop=(qbvi.MaxIterations(6),), n_fresh=20)

    def fitted(data):
        kept = {"checkpoint": tmp_path / "run.qbvi", "method": method, "seed": 1}
        return qbvi.fit(likelihood, likelihood.prior, vectorized=True, data=data, batch_size=20, **kept)

    first, again = fitted(data), fitted(data)
    np.testing.assert_array_equal(again.mean["weight"], first.mean["weight"])
    with pytest.raises(qbvi.CheckpointError, match="what differs: data"):
        fitted((data[0], data[1] + 1))


def test_arrays_and_frames_do_as_well_as_tensors(data):
    pandas = pytest.importorskip("pandas", reason="frames come with the extra qbvi[cli]")
    likelihood = linear()
    draws = drawn(likelihood, 4)
    expected = likelihood(draws, data)
    X, y = (part.numpy() for part in data)
    locked = {name: np.broadcast_to(value, value.shape) for name, value in draws.items()}  # not to be written to
    assert not locked["bias"].flags.writeable
    np.testing.assert_array_equal(likelihood(locked, (np.broadcast_to(X, X.shape), y)), expected)
    np.testing.assert_array_equal(likelihood(draws, (pandas.DataFrame(X), pandas.DataFrame(y))), expected)


def test_likelihoods_travel(data):
    likelihood = linear()
    draws = drawn(likelihood, 4)
    expected = likelihood(draws, data)  # a used one, with all that it remembers
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(likelihood))(draws, data), expected)


def test_values_keep_to_float64_where_the_module_computes_in_float32(data):
    net = nn.Linear(3, 1)
    single, double = (module_likelihood(one, nn.MSELoss()) for one in (net, nn.Linear(3, 1).double()))
    draws = drawn(single, 5)
    values = single(draws, data)
    assert values.dtype == torch.float64
    np.testing.assert_allclose(values, double(draws, data), rtol=1e-5)


def test_frozen_parameters_and_buffers_stay(data):
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.fixed = nn.Linear(3, 1), nn.Parameter(torch.tensor(2.0), requires_grad=False)
            self.register_buffer("centre", torch.tensor([1.0, 0.0, 0.0]))

        def forward(self, x):
            return self.fixed * self.linear(x - self.centre)

    likelihood = module_likelihood(Centred().double(), nn.MSELoss())
    assert set(likelihood.prior) == {"linear.weight", "linear.bias"}
    draws = drawn(likelihood, 2)
    expected = 2 * ((data[0].numpy() - [1, 0, 0]) @ draws["linear.weight"][1].T + draws["linear.bias"][1])
    np.testing.assert_allclose(likelihood.outputs(draws, data[0])[1], expected)


def test_inputs_go_as_one_argument_several_or_by_name(data):
    class Two(nn.Linear):
        def forward(self, left, right):
            return super().forward(left * right)

    likelihood = module_likelihood(Two(3, 1).double(), nn.MSELoss())
    draws = drawn(likelihood, 4)
    X = data[0]
    both = likelihood(draws, ((X, X), data[1]))
    np.testing.assert_allclose(both, linear_values(draws, X**2, data[1]))
    np.testing.assert_allclose(likelihood(draws, ({"right": X, "left": X}, data[1])), both)


def test_a_module_may_return_several_tensors(data):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.log_sd = nn.Linear(3, 1), nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return self.mean(x), self.log_sd

    def loss(output, target):
        mean, log_sd = output
        return 0.5 * ((target - mean) * torch.exp(-log_sd)) ** 2 + log_sd

    likelihood = module_likelihood(Noisy().double(), loss, chunk_size=2)
    draws = drawn(likelihood, 5)
    mean, log_sd = likelihood.outputs(draws, data[0])
    assert mean.shape == (5, N, 1)
    np.testing.assert_array_equal(log_sd, draws["log_sd"])
    by_hand = torch.distributions.Normal(mean, log_sd.exp()[:, None, None]).log_prob(data[1]).sum((1, 2))
    np.testing.assert_allclose(likelihood(draws, data), by_hand + N * 0.5 * np.log(2 * np.pi))
    np.testing.assert_array_equal(likelihood.predict(draws, data[0], link=lambda outputs: outputs[0]).draws, mean)


def test_the_module_given_is_not_touched(data):
    net = nn.Linear(3, 1).double()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    likelihood = module_likelihood(net, nn.MSELoss())
    likelihood(drawn(likelihood, 4), data)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    with torch.no_grad():
        net.weight += 1  # nor does what is done to it later
    assert torch.equal(likelihood.net.weight, before["weight"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch about itself
def test_compiled_pass_agrees_and_is_compiled_once(data, monkeypatch):
    # What is traced is ours to get right; the code made of it is PyTorch's, and takes it half a minute.
    traced = CompileCounter()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=traced))
    likelihood = linear()
    draws = drawn(likelihood, 8)
    compiled = module_likelihood(likelihood.net, nn.MSELoss(), scale=likelihood.scale, compile=True)
    for _ in range(3):
        np.testing.assert_allclose(compiled(draws, data), likelihood(draws, data), rtol=1e-10)
    assert traced.frame_count == 1


# --- priors and layers -----------------------------------------------------------------------------------------------


def test_default_priors_keep_outputs_at_unit_scale():
    net = nn.Sequential(
        nn.Embedding(10, 16), nn.Linear(16, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(4, 2, bias=False)
    )
    prior = module_likelihood(net, nn.CrossEntropyLoss()).prior
    assert list(prior) == [name for name, _ in net.named_parameters()]
    scales = {name: float(np.unique(p.scale)[0]) for name, p in prior.items()}
    assert scales == {"0.weight": 1, "1.weight": 0.25, "1.bias": 1, "2.weight": 1, "2.bias": 1, "4.weight": 0.5}
    assert np.all(prior["2.weight"].loc == 1)
    assert np.all(prior["2.bias"].loc == 0)
    convolution = module_likelihood(nn.Conv2d(4, 8, 3), nn.MSELoss()).prior["weight"]
    assert convolution.shape == (8, 4, 3, 3)
    np.testing.assert_allclose(convolution.scale, 1 / 6)


def test_priors_go_by_name_before_pattern_before_default():
    net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    given = {"*.bias": 0.5, "0.*": 3.0, "1.bias": qbvi.Normal(2.0, 0.1, shape=1)}
    prior = module_likelihood(net, nn.MSELoss(), prior=given).prior
    scales = {name: float(np.unique(p.scale)[0]) for name, p in prior.items()}
    assert scales == {"0.weight": 3.0, "0.bias": 0.5, "1.weight": 2**-0.5, "1.bias": 0.1}


def test_layers_are_blocks_of_the_posterior(data):
    likelihood = step_net()  # 24 and 28 weights
    assert likelihood.layers() == {("0.weight", "0.bias"): "full", ("2.weight", "2.bias"): "full"}
    assert likelihood.layers(26) == {("0.weight", "0.bias"): "full", ("2.weight", "2.bias"): "diagonal"}
    assert likelihood.layers(1) == {tuple(likelihood.prior): "diagonal"}
    two = module_likelihood(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double(), nn.MSELoss())
    method = qbvi.QBVI(n_samples=20, stop=(qbvi.MaxIterations(5),))
    fit = qbvi.fit(two, two.prior, vectorized=True, data=data, family=two.layers(5), method=method, seed=1)
    cov = fit.unconstrained[1]
    assert not cov[:8, 8:].any()
    assert np.count_nonzero(cov[:8, :8]) == 8  # eight weights, more than five
    assert np.count_nonzero(cov[8:, 8:]) == 9


# --- backends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["diagonal", "layers"])
@pytest.mark.parametrize("source", ["tensors", "loader"])
def test_fits_on_torch_are_those_on_numpy(data, family, source):
    likelihood = step_net()
    batch = (data[0], torch.arange(N) % 4)
    method = qbvi.QBVI(n_samples=20, stop=(qbvi.MaxIterations(8),), n_fresh=20)
    loader = DataLoader(TensorDataset(*batch), batch_size=15, shuffle=True)
    given = {"data": loader} if source == "loader" else {"data": batch, "batch_size": 15}
    fits = [
        qbvi.fit(
            likelihood,
            likelihood.prior,
            vectorized=vectorized,
            method=method,
            family=likelihood.layers() if family == "layers" else family,
            backend=backend,
            seed=1,
            **given,
        )
        for backend, vectorized in (("numpy", True), ("torch", True), ("torch", False))
    ]
    for other in fits[1:]:
        for name, mean in fits[0].mean.items():
            np.testing.assert_allclose(other.mean[name], mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(other.elbo, fits[0].elbo, rtol=1e-8)


def test_loaders_go_with_torch_alone(data):
    pytest.importorskip("jax", reason="jax is not installed")
    likelihood = linear()
    loader = DataLoader(TensorDataset(*data), batch_size=15, shuffle=True)
    with pytest.raises(
        ValueError, match="`data` can be a DataLoader with backend='torch' or 'numpy', got backend='jax'"
    ):
        qbvi.fit(likelihood, likelihood.prior, vectorized=True, data=loader, backend="jax")


# --- loaders ---------------------------------------------------------------------------------------------------------


def test_each_epoch_of_a_loader_sees_every_row_once():
    batches = LoaderBatches(DataLoader(TensorDataset(torch.arange(10)), batch_size=4, shuffle=True))
    rng = np.random.default_rng(1)
    orders = []
    for _ in range(3):
        epoch = [batches.draw(rng) for _ in range(3)]
        assert [(len(rows), scale) for (rows,), scale in epoch] == [(4, 2.5), (4, 2.5), (2, 5.0)]
        orders.append(torch.cat([rows for (rows,), _ in epoch]).tolist())
        assert sorted(orders[-1]) == list(range(10))
    assert orders[0] != orders[1] != orders[2]


def test_batches_of_a_loader_are_unbiased(data):
    likelihood = linear()
    one = {name: value[0] for name, value in drawn(likelihood, 1).items()}
    batches = LoaderBatches(DataLoader(TensorDataset(*data), batch_size=14, shuffle=True))  # the fifth holds four rows
    rng = np.random.default_rng(1)
    scaled = np.array(
        [[float(likelihood(one, b)) * s for b, s in (batches.draw(rng) for _ in range(5))] for _ in range(400)]
    )
    total = float(likelihood(one, data))
    z = (scaled.mean(0) - total) / (scaled.std(0, ddof=1) / np.sqrt(len(scaled)))
    assert np.abs(z).max() < 4.5  # five of them, one in 30,000 by chance
    # An epoch weighs all its rows, the short batch for what it is: no error is left at all.
    np.testing.assert_allclose(scaled @ np.array([14, 14, 14, 14, 4]) / N, total, rtol=1e-12)


def test_a_seed_fixes_a_fit_from_a_loader_whatever_else_is_drawn(data):
    likelihood = linear()
    method = qbvi.QBVI(n_samples=20, stop=(qbvi.MaxIterations(12),), n_fresh=20)

    def fitted(seed, generator=None):
        loader = DataLoader(TensorDataset(*data), batch_size=16, shuffle=True, generator=generator)
        return qbvi.fit(likelihood, likelihood.prior, vectorized=True, data=loader, method=method, seed=seed)

    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = fitted(5)
    assert torch.rand(1) == expected  # nobody else's numbers were used up
    np.testing.assert_array_equal(fitted(5).mean["weight"], first.mean["weight"])
    mine, other = (torch.Generator().manual_seed(seed) for seed in (7, 8))
    state = mine.get_state()
    np.testing.assert_array_equal(fitted(5, mine).mean["weight"], fitted(5, other).mean["weight"])
    assert torch.equal(mine.get_state(), state)
    assert not np.array_equal(fitted(6).mean["weight"], first.mean["weight"])


def test_fit_from_a_loader_reaches_the_closed_form(data):
    likelihood = linear()
    loader = DataLoader(TensorDataset(*data), batch_size=20, shuffle=True)
    rate = qbvi.LearningRate(0.1, decay_after=30)
    method = qbvi.QBVI(n_samples=100, learning_rate=rate, keep="last", stop=(qbvi.MaxIterations(400),))
    fit = qbvi.fit(likelihood, likelihood.prior, vectorized=True, data=loader, method=method, family="full", seed=1)
    mean, cov = exact(*data)
    sd = np.sqrt(np.diag(cov))
    # Batches of a third are noisy by more than a posterior sd; 400 steps of a falling rate leave a fraction of it.
    assert np.abs((np.append(fit.mean["weight"], fit.mean["bias"]) - mean) / sd).max() < 0.5
    np.testing.assert_allclose(np.sqrt(np.diag(fit.unconstrained[1])), sd, rtol=0.15)


def test_loader_over_part_of_the_rows_counts_those():
    rows = TensorDataset(torch.arange(10))
    batches = LoaderBatches(DataLoader(rows, batch_size=2, sampler=SubsetRandomSampler(range(6))))
    assert batches.n_rows == 6
    assert batches.draw(np.random.default_rng(1))[1] == 3.0
    whole = LoaderBatches(DataLoader(rows, batch_size=10))
    assert not whole.is_partial
    assert whole.draw(np.random.default_rng(1))[1] == 1.0


@pytest.mark.filterwarnings(
    "ignore:.*os.fork:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # JAX, if loaded
def test_workers_of_a_loader_give_the_same_batches(data):
    drawn_by = []
    for workers in (0, 1):
        batches = LoaderBatches(DataLoader(TensorDataset(*data), batch_size=16, shuffle=True, num_workers=workers))
        rng = np.random.default_rng(2)
        drawn_by.append(torch.cat([batches.draw(rng)[0][1] for _ in range(4)]))
    assert torch.equal(*drawn_by)


# --- predictions -----------------------------------------------------------------------------------------------------


def test_predictions_of_a_linear_module_have_their_closed_form(data):
    likelihood = linear()
    fit = qbvi.fit(likelihood, likelihood.prior, vectorized=True, data=data, seed=1)
    mean, cov = exact(*data)
    new = np.array([[1.0, 0.0, -1.0], [3.0, 2.0, 1.0]])
    design = np.column_stack([new, np.ones(2)])
    prediction = likelihood.predict(fit, new, n_draws=4000)
    sd = np.sqrt(np.einsum("ij,jk,ik->i", design, cov, design))
    assert np.abs((prediction.mean[:, 0] - design @ mean) / sd).max() < 4.5 / np.sqrt(4000)
    np.testing.assert_allclose(prediction.sd[:, 0], sd, rtol=4.5 / np.sqrt(8000))
    np.testing.assert_allclose(
        prediction.interval(0.9)[:, :, 0], (design @ mean + np.outer([-1.645, 1.645], sd)), atol=0.1 * sd.max()
    )
    np.testing.assert_array_equal(prediction.draws, likelihood.predict(fit, new, n_draws=4000).draws)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.functional.cross_entropy])
def test_classes_are_predicted_as_probabilities(data, loss):
    likelihood = step_net(loss)
    draws = drawn(likelihood, 50)
    probability = likelihood.predict(draws, data[0]).draws
    np.testing.assert_allclose(probability.sum(-1), 1.0)
    target = torch.arange(N) % 4
    score = likelihood.log_score(draws, (data[0], target))
    np.testing.assert_allclose(score, np.log(probability.mean(0)[np.arange(N), target]))
    raw = likelihood.predict(draws, data[0], link=lambda outputs: outputs).draws
    np.testing.assert_allclose(np.exp(raw) / np.exp(raw).sum(-1, keepdims=True), probability)


def test_two_classes_by_one_logit():
    likelihood = module_likelihood(nn.Linear(1, 1), nn.BCEWithLogitsLoss())
    draws = {"weight": np.zeros((3, 1, 1)), "bias": np.full((3, 1), np.log(3.0))}
    np.testing.assert_allclose(likelihood.predict(draws, np.zeros((2, 1))).mean, 0.75, rtol=1e-6)


def test_prediction_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match="`probability` must lie between 0 and 1, got 2"):
        Prediction(np.zeros((2, 3))).interval(2)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "loss", "options", "error", "message"),
    [
        (lambda x: x, nn.MSELoss(), {}, TypeError, "`net` must be a torch.nn.Module, got function"),
        (nn.ReLU(), nn.MSELoss(), {}, ValueError, "`net` must have parameters to infer"),
        (nn.Linear(1, 1), "mse", {}, TypeError, "`loss` must be a module such as .* got 'mse'"),
        (nn.Linear(1, 1), nn.MSELoss(), {"scale": 0}, ValueError, "`scale` must be positive, got 0"),
        (nn.Linear(1, 1), nn.MSELoss(), {"chunk_size": 1.5}, TypeError, "`chunk_size` must be a whole number"),
        (nn.Linear(1, 1), nn.MSELoss(), {"prior": {"wieght": 1.0}}, ValueError, "got 'wieght'; did you mean 'weight'"),
        (
            nn.Linear(1, 1),
            nn.MSELoss(),
            {"prior": {"bias": "wide"}},
            TypeError,
            "a standard deviation or a distribution",
        ),
        (nn.Linear(1, 1), nn.MSELoss(), {"prior": {"bias": qbvi.Normal(0, 1)}}, ValueError, r"of its shape \(1,\)"),
        (
            nn.Sequential(nn.Linear(1, 1), nn.Dropout()),
            nn.MSELoss(),
            {},
            ValueError,
            r"1 \(Dropout\) is in training mode",
        ),
        (nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)), nn.MSELoss(), {}, ValueError, r"call net.eval\(\) first"),
        (nn.BatchNorm1d(2, track_running_stats=False).eval(), nn.MSELoss(), {}, ValueError, "normalises by the batch"),
    ],
)
def test_what_cannot_be_a_likelihood_is_refused(net, loss, options, error, message):
    with pytest.raises(error, match=message):
        module_likelihood(net, loss, **options)


def test_modules_in_evaluation_mode_are_taken(data):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1)).double().eval()
    likelihood = module_likelihood(net, nn.MSELoss())
    draws = drawn(likelihood, 3)
    np.testing.assert_array_equal(likelihood(draws, data), likelihood(draws, data))


def test_what_a_call_cannot_take_is_refused(data):
    likelihood = linear()
    draws = drawn(likelihood, 4)
    with pytest.raises(ValueError, match="one loss for each of the 60 rows, got shape"):
        module_likelihood(likelihood.net, lambda output, target: ((output - target) ** 2).mean())(draws, data)
    with pytest.raises(ValueError, match=r"must be \(inputs, targets\), got Tensor"):
        likelihood(draws, data[0])
    with pytest.raises(ValueError, match="got tuple of length 3"):
        likelihood(draws, (*data, data[1]))
    with pytest.raises(ValueError, match="`params` must be a dict by the names weight, bias, got ndarray"):
        likelihood(np.zeros((4, 4)), data)
    with pytest.raises(ValueError, match="`params` must have the shapes of the module"):
        likelihood({"weight": draws["weight"], "bias": draws["bias"][0]}, data)
    with pytest.raises(ValueError, match="on the device of the module, cpu, got meta"):
        likelihood({name: torch.as_tensor(value).to("meta") for name, value in draws.items()}, data)


def test_loaders_that_cannot_be_scaled_or_kept_are_refused(data, tmp_path):
    likelihood = linear()

    class Endless(IterableDataset):
        def __iter__(self):
            yield from zip(*data, strict=True)

    def fitted(loader, **options):
        return qbvi.fit(likelihood, likelihood.prior, vectorized=True, data=loader, **options)

    rows = TensorDataset(*data)
    with pytest.raises(TypeError, match=r"a data set with a length.* got one over Endless"):
        fitted(DataLoader(Endless(), batch_size=8))
    with pytest.raises(ValueError, match="at least one batch, got none from 60 rows"):
        fitted(DataLoader(rows, batch_size=100, drop_last=True, shuffle=True))
    with pytest.raises(
        ValueError, match="`batch_size` must be left out with a DataLoader, which has its own, 8; got 4"
    ):
        fitted(DataLoader(rows, batch_size=8, shuffle=True), batch_size=4)
    with pytest.raises(ValueError, match="`checkpoint` cannot save the position in a DataLoader"):
        fitted(DataLoader(rows, batch_size=8, shuffle=True), checkpoint=tmp_path / "run.qbvi")
    with pytest.warns(UserWarning, match="pass shuffle=True"):
        LoaderBatches(DataLoader(rows, batch_size=8))


def test_without_pytorch_the_error_names_the_extra():
    code = """
import sys

class WithoutTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("No module named 'torch'")

sys.meta_path.insert(0, WithoutTorch())
import qbvi
import qbvi.torch
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'ImportError: qbvi.torch needs PyTorch, which is not installed: pip install "qbvi[torch]"' in ended.stderr


def test_targets_that_broadcast_against_outputs_are_refused():
    x = torch.randn(30, 2)
    likelihood = module_likelihood(nn.Linear(2, 1), lambda output, target: (output - target) ** 2)
    with pytest.raises(ValueError, match=r"losses of shape \(30, 30\) for 30 rows"):
        qbvi.fit(likelihood, likelihood.prior, data=(x, x[:, 0]), vectorized=True, backend="torch", seed=1)


def test_a_loader_that_drops_rows_gives_mini_batches():
    data = TensorDataset(torch.randn(100, 2), torch.randn(100, 1))
    whole, dropped = (DataLoader(data, batch_size=size, shuffle=True, drop_last=True) for size in (100, 64))
    assert not LoaderBatches(whole).is_partial
    assert LoaderBatches(dropped).is_partial
