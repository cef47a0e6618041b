"""Models behind UM-Bridge: a real server process on the loopback, and servers that are wrong in some way."""

import http.server
import pickle
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import qbvi
from qbvi.integrations.umbridge import UMBridgeError
from umbridge_process import free_port, served

SERVER = Path(__file__).parents[1] / "helpers" / "umbridge_server.py"


@contextmanager
def started():
    """A server process with the models of the helper script."""
    pytest.importorskip("umbridge", reason="umbridge is not installed")
    port = free_port()
    with served(SERVER, port, str(port)) as url:
        yield url


@pytest.fixture(scope="module")
def url():
    with started() as address:
        yield address


@pytest.mark.integrations
class TestRealServer:
    def test_a_posterior_has_its_exact_moments_and_normaliser(self, url):
        fit = qbvi.umbridge(url, "posterior", init=[0.5, 0.5]).fit(seed=1)
        assert fit.converged
        # 0.05 nats may be missing: means within 0.3 sd, and in practice a tenth of that.
        np.testing.assert_allclose(fit.mean, [0.0, 1.0], atol=0.15)
        np.testing.assert_allclose(fit.sd, [1.0, 1.5], rtol=0.1)
        assert fit.evidence == pytest.approx(np.log(2 * np.pi * 0.5), abs=0.1)

    def test_the_config_reaches_the_model(self, url):
        fit = qbvi.umbridge(url, "posterior", init=[0.5, 0.5], config={"sd": 2.0}).fit(seed=1)
        assert fit.evidence == pytest.approx(np.log(2 * np.pi * 2.0), abs=0.1)

    def test_predictions_and_a_likelihood_of_them(self, url):
        def predicted(offset, height, rate):
            return offset + height * np.exp(-rate * np.arange(5))

        y = predicted(1.0, 3.0, 0.5) + 0.1 * np.array([1.0, -1.0, 0.5, 0.3, -0.8])
        prior = {"offset": qbvi.Normal(0, 2), "height": qbvi.Normal(0, 5), "rate": qbvi.LogNormal(0, 1)}

        def log_likelihood(output):
            return stats.norm.logpdf(y, output, 0.1).sum()

        there = qbvi.umbridge(url, "forward", prior, log_likelihood=log_likelihood).fit(seed=1, family="full")
        here = qbvi.fit(lambda p: log_likelihood(predicted(**p)), prior, seed=1, family="full")
        assert there.converged
        # The server's exponential is that of Python, not of NumPy: the last bits of the values may differ.
        for name, mean in here.mean.items():
            assert there.mean[name] == pytest.approx(float(mean), abs=0.1 * float(here.sd[name]))

    def test_parallel_calls_reach_the_server_together_and_give_the_same_bits(self, url):
        alone = qbvi.umbridge(url, "posterior", qbvi.Normal(0, 2, shape=2)).fit(seed=1, max_evals=60)
        together = qbvi.umbridge(url, "slow", qbvi.Normal(0, 2, shape=2), parallel=4).fit(seed=1, max_evals=60)
        assert together.q.tobytes() == alone.q.tobytes()
        peak = qbvi.umbridge(url, "peak", init=[0.0, 0.0]).log_likelihood(np.zeros(2))
        assert peak >= 2

    def test_the_function_goes_to_processes_and_checkpoints(self, url, tmp_path):
        problem = qbvi.umbridge(url, "posterior", init=[0.5, 0.5])
        assert pickle.loads(pickle.dumps(problem.log_likelihood))(np.zeros(2)) == 0.0
        fit = problem.fit(seed=1, max_evals=60)
        saved = problem.fit(seed=1, max_evals=60, checkpoint=tmp_path / "run")
        resumed = problem.fit(seed=1, max_evals=60, checkpoint=tmp_path / "run")
        assert fit.q.tobytes() == saved.q.tobytes() == resumed.q.tobytes()

    def test_wrong_names_and_sizes_are_refused_before_the_fit(self, url):
        with pytest.raises(ValueError, match=r"one of 'posterior'.*got 'postrior'; did you mean 'posterior'\?"):
            qbvi.umbridge(url, "postrior", init=[0.0, 0.0])
        with pytest.raises(ValueError, match=r"must have 2 entries in all.*sizes \[2\], got 3"):
            qbvi.umbridge(url, "posterior", qbvi.Normal(0, 1, shape=3))
        with pytest.raises(
            ValueError, match=r"one number, a log-density, got outputs of sizes \[5\]; give log_likelihood="
        ):
            qbvi.umbridge(url, "forward", qbvi.Normal(0, 1, shape=3))
        with pytest.raises(ValueError, match="`prior` or `init` must be given"):
            qbvi.umbridge(url, "posterior")
        with pytest.raises(ValueError, match="`prior` must be given with `log_likelihood`"):
            qbvi.umbridge(url, "forward", log_likelihood=np.sum, init=[0.0, 0.0, 0.0])
        with pytest.raises(ValueError, match=r"'unable' .* cannot be evaluated"):
            qbvi.umbridge(url, "unable", init=[0.0, 0.0])
        with pytest.raises(ValueError, match="`init` must be a point of the prior's shape"):
            qbvi.umbridge(url, "posterior", init=[0.0]).fit(seed=1)

    @pytest.mark.parametrize(
        ("name", "message"),
        [("raising", r"failed without a reason \(500 .*\): the output of the server"), ("wrong-size", "InvalidOutput")],
    )
    def test_an_error_of_the_model_is_quoted(self, url, name, message):
        with pytest.raises(qbvi.EvaluationError, match=rf"UMBridgeError: the model at .* {message}"):
            qbvi.umbridge(url, name, init=[0.0, 0.0]).fit(seed=1)

    def test_a_server_that_dies_leaves_a_message_and_a_checkpoint_to_go_on_from(self, tmp_path, url):
        with started() as short_lived:
            dying = qbvi.umbridge(short_lived, "dying", init=[0.5, 0.5])
            with pytest.raises(qbvi.EvaluationError, match=r"no UM-Bridge server answers.*go on with checkpoint="):
                dying.fit(seed=1, checkpoint=tmp_path / "run")
        calls = []
        again = qbvi.umbridge(url, "posterior", init=[0.5, 0.5])
        counted = qbvi.Problem(lambda p: calls.append(p) or again.log_likelihood(p), again.prior, again.init)
        resumed = counted.fit(seed=1, checkpoint=tmp_path / "run", on_mismatch="keep")
        whole = again.fit(seed=1)
        assert resumed.q.tobytes() == whole.q.tobytes()
        assert len(calls) == whole.n_evals - 9


def test_no_server_is_an_error_with_the_address():
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UMBridgeError, match=f"no UM-Bridge server answers at {address} .*refused"):
        qbvi.umbridge(address, "posterior", init=[0.0])


@pytest.mark.parametrize("url", ["localhost:4242", 4242, None, ""])
def test_an_address_must_be_one(url):
    with pytest.raises(ValueError, match="`url` must be an address such as 'http://localhost:4242'"):
        qbvi.umbridge(url, "posterior", init=[0.0])


class Stranger(http.server.BaseHTTPRequestHandler):
    """A web server that is no UM-Bridge server."""

    answer = b"<html>welcome</html>"

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *args):
        pass


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>welcome</html>", "does not speak UM-Bridge: it answers '<html>"),
        (b'{"protocolVersion": 2.0, "models": []}', r"does not speak version 1\.0 of UM-Bridge"),
        (b"[]", r"does not speak version 1\.0 of UM-Bridge"),
        (b'{"error": {"type": "Busy", "message": "come back later"}}', "answers Busy: come back later"),
    ],
)
def test_other_servers_are_recognised(answer, message, monkeypatch):
    monkeypatch.setattr(Stranger, "answer", answer)
    server = http.server.HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.raises(UMBridgeError, match=message):
            qbvi.umbridge(f"http://127.0.0.1:{server.server_port}/", "posterior", init=[0.0])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
