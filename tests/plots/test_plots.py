"""The three pictures: what is drawn, what it says, and what is refused. Warnings are errors here, so drawing is silent."""

import importlib
import io
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from scipy import integrate, stats

import qbvi
from qbvi import plots
from qbvi.distributions import (
    Beta,
    Dirichlet,
    Flat,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    MultivariateNormal,
    Normal,
    SciPyPrior,
    Transformed,
    Uniform,
)
from qbvi.families import DiagonalGaussian, Gaussian
from qbvi.model import Model
from qbvi.results import Fit, Report, Trace
from qbvi.supports import Bijection, Interval, Ordered, Positive

mpl.use("Agg")

MIXED = {
    "alpha": Normal(0, 1, shape=2),
    "sigma2": InverseGamma(3, 1),
    "rho": Uniform(-1, 1),
    "w": Dirichlet(np.ones(3)),
}


def make_trace(n, d, start=-1000.0, noise=0.5):
    t, rng = np.arange(n), np.random.default_rng(2)
    raw = -400 + (start + 400) * np.exp(-t / 5) + noise * rng.normal(size=n)
    smooth = np.array([raw[max(0, i - 9) : i + 1].mean() for i in t])
    return Trace(100 * (t + 1), raw, smooth, raw, raw, raw, np.zeros((n, d)), np.ones((n, d)))


def make_fit(prior=MIXED, n=200, family=Gaussian, **options):
    model = Model(prior)
    d, rng = model.dim, np.random.default_rng(1)
    factor = rng.normal(size=(d, d)) / 3
    q = family(d).from_moments(rng.normal(size=d) / 2, factor @ factor.T + np.eye(d) / 20)
    report = Report(elbo=-400.02, elbo_se=0.03, trace=make_trace(n, d, **options))
    return Fit(model, family(d), q, report)


def lines_of(ax):
    return {line.get_label(): line for line in ax.get_lines()}


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    return buffer.getvalue()


class TestTrace:
    def test_what_is_drawn(self):
        fit = make_fit()
        figure = fit.plot_trace(reference={"exact": -399.9})
        ax = figure.axes[0]
        lines = lines_of(ax)
        assert_allclose(lines["each iteration"].get_xydata(), np.column_stack([fit.trace.n_evals, fit.trace.elbo]))
        assert_allclose(lines["smoothed"].get_ydata(), fit.trace.elbo_smooth)
        assert_allclose(lines["exact"].get_ydata(), -399.9)
        assert_allclose(lines["final estimate ± 2 s.e."].get_ydata(), -400.02)
        assert_allclose(ax.patches[0].get_extents().transformed(ax.transData.inverted()).intervaly, [-400.08, -399.96])
        assert legend_of(figure) == ["each iteration", "smoothed", "final estimate ± 2 s.e.", "exact"]
        assert png(figure).startswith(b"\x89PNG")

    def test_early_values_do_not_squash_the_end(self):
        ax = make_fit(start=-1e6).plot_trace().axes[0]
        low, high = ax.get_ylim()
        assert -410 < low < -402
        assert -400 < high < -395
        assert len(ax.child_axes) == 1  # the whole run

    def test_no_inset_where_everything_shows(self):
        assert not make_fit(start=-401.0).plot_trace(reference=-399.0).axes[0].child_axes

    def test_a_run_that_never_settled_shows_its_rise(self):
        fit = make_fit(n=12, noise=0.0)
        ax = fit.plot_trace().axes[0]
        assert ax.get_ylim()[0] < -700

    def test_given_axes(self):
        figure = Figure()
        ax = figure.add_subplot()
        assert make_fit().plot_trace(ax=ax) is figure
        assert len(ax.get_lines()) == 3

    @pytest.mark.parametrize("bad", [np.nan, -np.inf])
    def test_values_that_are_not_finite(self, bad):
        trace = make_trace(50, 1)
        broken = np.where(np.arange(50) < 10, bad, trace.elbo)
        names = {name: trace[name] for name in Trace.names()}
        fit = make_fit(Normal(0, 1))
        for elbo in (broken, np.full(50, bad)):
            report = Report(trace=Trace(**{**names, "elbo": elbo, "elbo_smooth": elbo}))
            assert png(Fit(fit.model, fit.family, fit.q, report).plot_trace())

    def test_the_predicted_gap_is_below_the_bound(self):
        fit = make_fit(Normal(0, 1), n=6)
        gap = np.array([np.inf, np.nan, 3.0, 0.0, 0.4, 0.02])
        trace = Trace(**{name: fit.trace[name] for name in Trace.names()} | {"gap": gap})
        fit = Fit(fit.model, fit.family, fit.q, Report(trace=trace))
        bound, below = fit.plot_trace().axes
        assert below.get_yscale() == "log"
        assert below.get_ylabel() == "gap (nats)"
        assert_allclose(below.get_lines()[0].get_xydata(), [[300, 3.0], [500, 0.4], [600, 0.02]])
        assert_allclose(below.get_ylim(), [0.01, 10])
        assert bound.get_xlim() == below.get_xlim()
        assert not bound.get_xlabel()
        assert len(make_fit().plot_trace().axes) == 1  # no predictions
        ax = Figure().add_subplot()
        assert len(fit.plot_trace(ax=ax).axes) == 1  # the caller's axes hold the bound alone

    def test_one_iteration_and_none(self):
        png(make_fit(n=1).plot_trace())
        with pytest.raises(ValueError, match="at least one iteration"):
            make_fit(n=0).plot_trace()


class TestMarginals:
    def test_densities_are_exact_and_integrate_to_one(self):
        fit = make_fit()
        figure = fit.plot_marginals()
        assert [ax.get_title() for ax in figure.axes] == list(fit.labels)
        for ax in figure.axes:
            x, density = lines_of(ax)["posterior"].get_data()
            assert_allclose(integrate.trapezoid(density, x), 1, atol=3e-3)
        x, density = lines_of(figure.axes[2])["posterior"].get_data()
        loc, cov = fit.unconstrained
        assert_allclose(density, stats.lognorm(cov[2, 2] ** 0.5, scale=np.exp(loc[2])).pdf(x), rtol=1e-8)

    @pytest.mark.parametrize(
        ("prior", "exact"),
        [
            (Normal([0, 1], [1, 2]), lambda x: stats.norm(1, 2).pdf(x)),
            (LogNormal([0, 1], 0.5), lambda x: stats.lognorm(0.5, scale=np.e).pdf(x)),
            (MultivariateNormal([0, 1], [[2, 0.5], [0.5, 3]]), lambda x: stats.norm(1, 3**0.5).pdf(x)),
            (HalfCauchy([1, 2]), lambda x: stats.halfcauchy(scale=2).pdf(x)),
            (Beta(2, [3, 4]), lambda x: stats.beta(2, 4).pdf(x)),
            (Uniform([0, -1], [1, 4]), lambda x: 0.2 + 0 * x),
            (Dirichlet([2.0, 3.0, 4.0]), lambda x: stats.beta(3, 6).pdf(x)),
            (Dirichlet([[2.0, 3.0], [4.0, 5.0]]), lambda x: stats.beta(3, 2).pdf(x)),
        ],
    )
    def test_prior_density_of_one_entry_of_several(self, prior, exact):
        ax = make_fit({"x": prior}).plot_marginals(["x[1]"] if len(prior.shape) == 1 else ["x[0,1]"]).axes[0]
        x, density = lines_of(ax)["prior"].get_data()
        assert_allclose(density, exact(x), rtol=1e-6)

    @pytest.mark.parametrize(
        ("prior", "exact"),
        [
            (InverseGamma(3, 1), stats.invgamma(3).pdf),
            (HalfNormal(2.0), stats.halfnorm(scale=2).pdf),
            (SciPyPrior(stats.gumbel_r(1, 2)), stats.gumbel_r(1, 2).pdf),
            (Transformed(Normal(0, 1), Positive()), stats.lognorm(1).pdf),
        ],
    )
    def test_prior_density_of_a_scalar(self, prior, exact):
        x, density = lines_of(make_fit({"x": prior}).plot_marginals().axes[0])["prior"].get_data()
        assert_allclose(density, exact(x), rtol=1e-6)

    def test_prior_without_a_closed_form_is_smoothed_draws(self):
        prior = SciPyPrior(stats.multivariate_t([0, 0], np.eye(2), df=8))
        x, density = lines_of(make_fit({"x": prior}).plot_marginals().axes[0])["prior"].get_data()
        assert_allclose(density, stats.t(8).pdf(x), atol=0.03)

    def test_prior_is_absent_when_improper_or_unwanted(self):
        for figure in (make_fit(Flat(2)).plot_marginals(), make_fit().plot_marginals(prior=False)):
            assert all("prior" not in lines_of(ax) for ax in figure.axes)
            assert legend_of(figure) == ["posterior"]

    def test_points_and_reference(self):
        fit = make_fit()
        points = {"ML": {"alpha": [3.0, 0.1], "sigma2": 0.7}, "truth": fit.mean}
        figure = fit.plot_marginals(points=points, reference=fit.sample(500, seed=0))
        assert legend_of(figure) == ["posterior", "reference", "prior", "ML", "truth"]
        assert_allclose(lines_of(figure.axes[0])["ML"].get_xdata(), 3.0)
        assert figure.axes[0].get_xlim()[1] > 3.0  # a marked point is in sight
        assert "ML" not in lines_of(figure.axes[3])  # no value was given for rho
        assert "truth" in lines_of(figure.axes[3])
        png(figure)

    def test_names_select_order_and_rename(self):
        fit = make_fit()
        assert [ax.get_title() for ax in fit.plot_marginals(["rho", "alpha"]).axes] == ["rho", "alpha[0]", "alpha[1]"]
        assert [ax.get_title() for ax in fit.plot_marginals({"alpha[1]": "age", "rho": "r"}).axes] == ["age", "r"]
        assert len(fit.plot_marginals("rho").axes) == 1

    @pytest.mark.parametrize(
        "prior",
        [
            Flat(3, Ordered()),
            Transformed(Normal(0, 1, shape=2), Bijection(np.tanh, np.arctanh)),
            Flat(2, Interval(-np.inf, 1.0)),
            Normal(0, 1),
        ],
        ids=["ordered", "bijection", "below", "scalar"],
    )
    def test_every_support_draws(self, prior):
        figure = make_fit(prior).plot_marginals()
        assert png(figure)
        assert all(ax.get_lines() for ax in figure.axes[: len(make_fit(prior).labels)])

    def test_very_wide_and_very_narrow(self):
        for loc, scale in ((0.0, 1e-6), (30.0, 1.0), (1e6, 1.0), (0.0, 3.0)):
            fit = make_fit({"x": HalfNormal(1.0), "y": Uniform(0, 1)}, family=DiagonalGaussian)
            q = np.array([min(loc, 50), loc, scale, scale])
            assert png(Fit(fit.model, fit.family, q, fit.record).plot_marginals())

    def test_too_many_panels(self):
        fit = make_fit(Normal(0, 1, shape=30))
        with pytest.raises(ValueError, match=r"between 1 and 24 entries, got 30; choose with names=\['theta\[0\]'"):
            fit.plot_marginals()
        assert len(fit.plot_marginals([f"theta[{i}]" for i in range(24)]).axes) == 24

    def test_bad_input(self):
        fit = make_fit()
        with pytest.raises(ValueError, match=r"got 'alpah'; did you mean 'alpha'?"):
            fit.plot_marginals(["alpah"])
        with pytest.raises(ValueError, match="got \\['gamma'\\] as well"):
            fit.plot_marginals(points={"ML": {"gamma": 1.0}})
        with pytest.raises(ValueError, match=r"'alpha' must have shape \(2,\) each, got \(3,\)"):
            fit.plot_marginals(points={"ML": {"alpha": np.ones(3)}})
        with pytest.raises(ValueError, match="at most 4 labels"):
            fit.plot_marginals(points={str(i): fit.mean for i in range(5)})


class TestPairs:
    def test_corner(self):
        fit = make_fit()
        figure = fit.plot_pairs(points={"truth": fit.mean}, reference=fit.sample(300, seed=0))
        assert len(figure.axes) == 7 * 8 // 2
        assert legend_of(figure) == ["posterior (50 %, 95 %)", "reference", "truth"]
        assert [ax.get_xlabel() for ax in figure.axes if ax.get_xlabel()] == list(fit.labels)
        assert [ax.get_ylabel() for ax in figure.axes if ax.get_ylabel()] == list(fit.labels[1:])
        png(figure)

    def test_regions_hold_their_probability(self):
        fit = make_fit({"x": Normal(0, 1), "s": HalfNormal(1.0)})
        ax = fit.plot_pairs().axes[1]
        u = fit.draw_unconstrained(40_000, seed=1)
        x = np.column_stack([u[:, 0], np.exp(u[:, 1])])
        outlines = [patch.get_path() for patch in ax.patches]
        for outline, level in zip(outlines, (0.95, 0.5), strict=True):
            error = np.sqrt(level * (1 - level) / len(x))
            # a polygon of 240 sides is smaller than its ellipse by 0.01 %
            assert abs(outline.contains_points(x).mean() - level) < 5 * error + 1e-3

    def test_regions_from_draws_hold_their_probability(self):
        fit = make_fit({"w": Dirichlet(np.ones(3))})
        ax = fit.plot_pairs(["w[0]", "w[1]"]).axes[1]
        filled = [c for c in ax.collections if c.get_facecolor().size]
        x = fit.sample(20_000, seed=1)["w"][:, :2]
        for region, level in zip(filled, (0.95, 0.5), strict=True):
            assert abs(region.get_paths()[0].contains_points(x).mean() - level) < 0.03

    def test_real_pairs_are_ellipses(self):
        fit = make_fit(Normal(0, 1, shape=2))
        outline = fit.plot_pairs().axes[1].get_lines()[0].get_xydata()
        loc, cov = fit.unconstrained
        radii = np.einsum("ni,ij,nj->n", outline - loc, np.linalg.inv(cov), outline - loc)
        assert_allclose(radii, stats.chi2(2).ppf(0.95))

    def test_number_of_parameters(self):
        fit = make_fit(Normal(0, 1, shape=11))
        with pytest.raises(ValueError, match="between 1 and 10 entries, got 11"):
            fit.plot_pairs()
        few = make_fit(Normal(0, 1, shape=3))
        with pytest.raises(ValueError, match="between 1 and 2 entries, got 3"):
            few.plot_pairs(max_parameters=2)
        assert len(few.plot_pairs(max_parameters=3).axes) == 6
        with pytest.raises(ValueError, match="at least two entries to pair, got 1"):
            fit.plot_pairs(["theta[0]"])

    @pytest.mark.soak
    def test_more_parameters_than_by_default_are_drawn_if_asked_for(self):
        assert len(make_fit(Normal(0, 1, shape=11)).plot_pairs(max_parameters=11).axes) == 66


def test_figures_do_not_accumulate_and_show_themselves():
    from matplotlib import pyplot as plt

    before = plt.get_fignums()
    figure = make_fit(Normal(0, 1, shape=2)).plot_pairs()
    assert plt.get_fignums() == before
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_without_matplotlib(monkeypatch):
    fit = make_fit()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "qbvi.plots")
    with pytest.raises(ImportError, match=r'pip install "qbvi\[plots\]"'):
        fit.plot_trace()
    monkeypatch.undo()
    assert importlib.import_module("qbvi.plots") is plots


def test_whole_numbers_are_bars_and_variances_stay_positive():
    prior = {"z": qbvi.Bernoulli(0.3), "n": qbvi.Poisson(4.0), "v": qbvi.InverseGamma(3, 1)}
    fit = qbvi.fit(lambda p: 1.5 * p["z"] - 0.2 * p["n"] - 1 / p["v"], prior, seed=1)
    switch, count, variance = fit.plot_marginals().axes
    heights = [bar.get_height() for bar in switch.patches]
    np.testing.assert_allclose(heights, [1 - fit.mean["z"], fit.mean["z"]], atol=0.01)  # shares of 8,192 draws
    assert len(count.patches) > 5
    x = variance.lines[0].get_xdata()
    assert not variance.patches
    assert x.min() > 0
    assert len(fit.plot_pairs().axes) > 3


class TestReference:
    def test_of_draws_of_a_fit_and_of_weighted_draws(self):
        fit = make_fit({"x": Normal(0, 1), "s": HalfNormal(1.0)})
        draws = fit.sample(3000, seed=1)
        weighted = qbvi.results.WeightedDraws(draws, np.full(3000, 1 / 3000))
        for reference in (draws, fit, weighted):
            figure = fit.plot_pairs(reference=reference)
            assert legend_of(figure) == ["posterior (50 %, 95 %)", "reference"]
            dots = figure.axes[1].get_lines()[0]
            assert len(dots.get_xdata()) == 1000
            assert dots.get_zorder() < figure.axes[1].get_lines()[1].get_zorder()  # it lies under the posterior

    def test_weights_count(self):
        fit = make_fit({"x": Normal(0, 1), "y": Normal(0, 1)})
        at = {"x": np.array([0.0, 5.0]), "y": np.array([0.0, 5.0])}
        figure = fit.plot_pairs(reference=qbvi.results.WeightedDraws(at, np.array([0.2, 0.8])))
        # of the 1,000 dots of a sample of 8,000, whose order is random: a standard deviation of 0.013
        assert abs(np.mean(figure.axes[1].get_lines()[0].get_xdata() == 5.0) - 0.8) < 0.06

    def test_its_regions_hold_their_probability(self):
        fit = make_fit(Normal(0, 1, shape=2))
        shifted = fit.sample(8000, seed=3) + 3.0  # another place than the posterior
        ax = fit.plot_pairs(reference=shifted).axes[1]
        lines = next(c for c in ax.collections if len(c.get_paths()) == 2)
        for outline, level in zip(lines.get_paths(), (0.95, 0.5), strict=True):
            # the level is a quantile of the draws themselves, up to the width of a bin
            assert abs(outline.contains_points(shifted).mean() - level) < 0.03

    def test_few_draws_or_draws_outside_the_support_are_drawn_too(self):
        fit = make_fit({"x": Normal(0, 1), "s": HalfNormal(1.0)})
        few = fit.plot_pairs(reference={"x": [0.1, 0.2], "s": [1.0, 2.0]}).axes[1]
        assert not few.collections
        outside = {"x": np.random.default_rng(1).normal(size=500), "s": np.random.default_rng(2).normal(size=500)}
        assert fit.plot_pairs(reference=outside).axes[1].collections


class TestNumbers:
    def test_median_and_interval_are_above_each_density(self):
        fit = make_fit({"x": Normal(0, 1)})
        loc, cov = fit.unconstrained
        figure = fit.plot_marginals(interval=0.5)
        numbers = figure.axes[0].texts[0].get_text().replace("\N{MINUS SIGN}", "-").replace("[", "").replace("]", "")
        found = [float(word.strip(",")) for word in numbers.split()]
        sd = cov[0, 0] ** 0.5
        assert_allclose(found, loc[0] + sd * stats.norm.ppf([0.5, 0.25, 0.75]), atol=0.006)
        assert figure.get_supxlabel() == "above each density: median [50 % interval]"

    def test_narrow_panels_have_none(self):
        assert not make_fit(Normal(0, 1, shape=7)).plot_pairs().axes[0].texts
        assert make_fit(Normal(0, 1, shape=3)).plot_pairs().axes[0].texts

    def test_bad_interval(self):
        with pytest.raises(ValueError, match="interval"):
            make_fit().plot_marginals(interval=1.5)


class TestForest:
    def test_rows_are_quantiles(self):
        fit = make_fit(Normal(0, 1, shape=4))
        figure = fit.plot_forest(points={"zero": np.zeros(4)})
        ax = figure.axes[0]
        assert [label.get_text() for label in ax.get_yticklabels()] == list(fit.labels)
        assert ax.yaxis_inverted()
        outer, inner = (np.array([path.vertices[:, 0] for path in c.get_paths()]) for c in ax.collections[:2])
        loc, cov = fit.unconstrained
        sd = np.sqrt(np.diag(cov))
        assert_allclose(outer, loc[:, None] + sd[:, None] * stats.norm.ppf([0.025, 0.975]))
        assert_allclose(inner, loc[:, None] + sd[:, None] * stats.norm.ppf([0.25, 0.75]))
        assert legend_of(figure) == ["posterior: median, 50 % and 95 %", "zero"]

    def test_reference_and_names(self):
        fit = make_fit()
        figure = fit.plot_forest(["rho", "alpha"], reference=fit.sample(500, seed=1), interval=0.9)
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rho", "alpha[0]", "alpha[1]"]
        assert legend_of(figure) == ["posterior: median, 50 % and 90 %", "reference"]
        assert png(figure)


def test_the_end_of_a_trace_is_enlarged_where_the_axis_hides_it():
    trace = make_trace(16, 1, noise=0.0)
    fall = np.where(np.arange(16) == 10, -900.0, -400.0 + 0.01 * np.arange(16))
    names = {name: trace[name] for name in Trace.names()} | {"elbo": fall, "elbo_smooth": fall}
    fit = make_fit(Normal(0, 1))
    fit = Fit(fit.model, fit.family, fit.q, Report(elbo=-399.9, elbo_se=0.02, trace=Trace(**names)))
    whole, end = fit.plot_trace().axes
    assert whole.get_ylim()[0] < -899
    low, high = end.get_ylim()
    assert -401 < low < -399.96 < high < -399
    assert end.get_xlim() == (1200, 1600)
    assert "enlarged" in end.get_title()
    assert len(make_fit().plot_trace().axes) == 1
