"""`qbvi serve`: the same fit over a pipe, for programs in any language."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import qbvi
from qbvi.cli import main
from qbvi.cli.priors import PriorFileError, read_prior
from qbvi.cli.serve import _LEAST_WAITING, _LONGEST_LINE, _Inbox
from sweeps import sweep

EXAMPLES = Path(__file__).parents[2] / "examples" / "serve"
PRIOR = {"beta": qbvi.Normal(0, 5, shape=2), "sigma": qbvi.HalfNormal(2)}
SERVE = f"{sys.executable} -m qbvi serve"


def density(point):
    """The log-likelihood of the examples."""
    i = np.arange(20)
    x = (i - 9.5) / 5
    r = (1 + 2 * x + 0.5 * np.sin(12.9898 * i) - point["beta"][0] - point["beta"][1] * x) / point["sigma"]
    return float(np.sum(-0.5 * r**2 - np.log(point["sigma"]) - 0.5 * math.log(2 * math.pi)))


def quick_prior(folder):
    """The prior file of the examples, with a family that is quicker than the default."""
    path = folder / "quick.toml"
    path.write_text((EXAMPLES / "prior.toml").read_text() + 'family = "full"\n')
    return path


class Client:
    """The other end of the pipe."""

    def __init__(self, folder, *arguments, prior=None):
        command = [
            sys.executable,
            "-m",
            "qbvi",
            "serve",
            "--prior",
            prior or quick_prior(folder),
            "--out",
            folder / "posterior.npz",
            *arguments,
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said = []

    def hear(self):
        line = self.process.stdout.readline()
        self.said.append(json.loads(line) if line else {"type": "end"})
        return self.said[-1]

    def say(self, line):
        self.process.stdin.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
        self.process.stdin.flush()

    def answer(self, answer, until="done"):
        """Answer every question until something else is said."""
        while (message := self.hear())["type"] not in (until, "done", "end"):
            if message["type"] == "ask":
                self.say(answer(message))
        return message

    def end(self):
        rest, errors = self.process.communicate()
        self.said += map(json.loads, rest.splitlines())
        return self.process.returncode, errors

    def heard(self, kind):
        return [message for message in self.said if message["type"] == kind]


def value(message):
    return {"type": "tell", "id": message["id"], "value": density(message["parameters"])}


@pytest.fixture
def client(tmp_path):
    clients = []

    def start(*arguments, **options):
        clients.append(Client(tmp_path, *arguments, **options))
        return clients[-1]

    yield start
    for one in clients:
        one.process.kill()
        one.process.wait()
        for stream in (one.process.stdin, one.process.stdout, one.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture(scope="module")
def expected():
    return qbvi.fit(density, PRIOR, family="full", seed=1, on_failure="exclude")


@pytest.mark.parametrize("family", sweep(["full", "auto"], first=1))
def test_the_same_as_fit_to_the_last_bit(tmp_path, client, family):
    expected = qbvi.fit(density, PRIOR, seed=1, on_failure="exclude", family=family)
    one = client(prior=quick_prior(tmp_path) if family == "full" else EXAMPLES / "prior.toml")
    done = one.answer(value)
    assert one.end() == (0, "")
    assert one.said[0] == {"type": "hello", "protocol": 1, "parameters": {"beta": [2], "sigma": []}}
    assert done["elbo"] == expected.elbo
    assert (done["converged"], done["n_evals"], done["n_failed"]) == (True, expected.n_evals, 0)
    assert done["summary"]["sigma"]["mean"] == expected.summary()["sigma"].mean
    assert done["posterior"] == str(tmp_path / "posterior.npz")
    assert_array_equal(qbvi.load(done["posterior"]).q, expected.q)
    assert [m["n_evals"] for m in one.heard("progress")] == expected.trace.n_evals.tolist()
    assert [m["id"] for m in one.heard("ask")] == list(range(expected.n_evals))


def test_evaluations_of_an_earlier_run(tmp_path, client, expected):
    expected.evaluations.save(tmp_path / "earlier.csv")
    one = client("--evaluations", tmp_path / "earlier.csv")
    done = one.answer(value)
    assert one.end() == (0, "")
    assert done["n_evals"] < expected.n_evals
    assert done["summary"]["sigma"]["mean"] == pytest.approx(expected.mean["sigma"], rel=0.01)
    assert len(qbvi.load(done["posterior"]).evaluations) == expected.n_evals + done["n_evals"]
    other = client("--evaluations", tmp_path / "earlier.csv")
    changed = other.answer(lambda message: value(message) | {"value": 0.0})
    assert "must be values of this function" in changed["stop_reason"]
    assert other.end()[0] == 1


def same_posterior(path, expected):
    """Another language's logarithm may differ in its last bit, and a fit makes that a little more."""
    fit = qbvi.load(path)
    np.testing.assert_allclose(fit.mean["beta"], expected.mean["beta"], rtol=1e-3)
    np.testing.assert_allclose(fit.sd["beta"], expected.sd["beta"], rtol=1e-3)
    np.testing.assert_allclose(fit.mean["sigma"], expected.mean["sigma"], rtol=1e-3)
    assert fit.converged


def test_a_program_in_c(tmp_path, expected):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    program = tmp_path / "simulator"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", program, EXAMPLES / "simulator.c", "-lm"], check=True)
    command = f"{SERVE} --prior {quick_prior(tmp_path)} --out {tmp_path / 'posterior.npz'}"
    said = subprocess.run([program, command], check=True, capture_output=True, text=True).stdout.splitlines()
    assert [json.loads(line)["type"] for line in said] == ["hello", "done"]
    same_posterior(tmp_path / "posterior.npz", expected)


def test_a_shell_script(tmp_path, expected):
    if shutil.which("bash") is None or shutil.which("awk") is None:
        pytest.skip("there is no bash with awk here")
    command = f"{SERVE} --prior {quick_prior(tmp_path)} --out {tmp_path / 'posterior.npz'}"
    script = ["bash", EXAMPLES / "simulator.sh", command]
    said = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [json.loads(line)["type"] for line in said] == ["hello", "done"]
    same_posterior(tmp_path / "posterior.npz", expected)


WRONG = [
    ("this is no JSON", "not a JSON object"),
    ('{"id": 0, "value": nan}', "not a JSON object"),
    ('[1, 2]', "a line must be"),
    ('{"type": "ask"}', "a line must be"),
    ('{"value": 1.0}', 'a whole number as "id"'),
    ('{"id": 0}', 'either "value" or "error"'),
    ('{"id": 0, "value": 1, "error": "both"}', 'either "value" or "error"'),
    ('{"id": 0.5, "value": 1}', 'a whole number as "id"'),
    ('{"id": true, "value": 1}', 'a whole number as "id"'),
    ('{"id": 0, "value": "many"}', '"value" must be a number'),
    ('{"id": 0, "value": [1]}', '"value" must be a number'),
    ('{"id": 0, "value": true}', '"value" must be a number'),
    ('{"id": 123456, "value": 1}', "must be points that `ask` returned"),
    ('{"id": -1, "value": 1}', "must be points that `ask` returned"),
    ("[" * 100_000, "not a JSON object"),
    ("\\xff\\xfe", "not a JSON object"),
]  # fmt: skip


def test_malformed_lines_are_answered_by_number_and_change_nothing(client, expected):
    one = client()
    for line, _ in WRONG:
        one.say(line)
    done = one.answer(value)
    assert one.end() == (0, "")
    errors = one.heard("error")
    assert [error["line"] for error in errors] == list(range(1, len(WRONG) + 1))
    for error, (_, message) in zip(errors, WRONG, strict=True):
        assert message in error["message"]
    assert done["elbo"] == expected.elbo


FAILING = [{"value": None}, {"value": "nan"}, {"value": "-inf"}, {"value": "Infinity"}, {"error": "solver diverged"}]


def test_failures_by_any_name(tmp_path, client):
    one = client()

    def answer(message):
        if message["id"] % 10 == 9:
            return {"id": message["id"], **FAILING[message["id"] // 10 % len(FAILING)]}
        return value(message)

    done = one.answer(answer)
    assert one.end() == (0, "")
    assert done["n_failed"] == done["n_evals"] // 10
    kinds = [failure.kind for failure in qbvi.load(done["posterior"]).failures]
    assert kinds[:5] == ["exception", "nan", "-inf", "+inf", "exception"]
    assert "solver diverged" in qbvi.load(done["posterior"]).failures[4].message


def test_raise_ends_it(tmp_path, client):
    (tmp_path / "prior.toml").write_text(
        '[a]\ndistribution = "Normal"\nloc = 0\nscale = 1\n[fit]\non_failure = "raise"\n'
    )
    one = client(prior=tmp_path / "prior.toml")
    done = one.answer(lambda message: {"id": message["id"], "error": "out of licences"})
    assert one.end()[0] == 1
    assert "out of licences" in done["stop_reason"]
    assert done["posterior"] is None


@pytest.mark.parametrize("ending", sweep(["stop", "Ctrl-C", "SIGTERM", "end of input"], first=2))
def test_an_early_end_gives_what_there_is(tmp_path, client, ending):
    one = client("--checkpoint", tmp_path / "run")
    one.answer(value, until="progress")
    if ending == "stop":
        one.say({"type": "stop"})
    elif ending != "end of input":
        one.process.send_signal(signal.SIGTERM if ending == "SIGTERM" else signal.SIGINT)
    status, errors = one.end()  # closes the pipe
    assert (status, errors) == (0, "")
    (done,) = one.heard("done")
    words = {"end of input": "the input ended", "stop": "stopped by the other program"}
    assert words.get(ending, f"interrupted ({ending})") in done["stop_reason"]
    assert not done["converged"]
    assert not qbvi.load(done["posterior"]).converged


def test_nothing_at_all_is_no_posterior(tmp_path, client):
    one = client()
    one.hear()
    assert one.end()[0] == 1
    assert one.heard("done") == [
        {"type": "done", "converged": False, "stop_reason": "the input ended before the fit settled", "posterior": None}
    ]
    assert not (tmp_path / "posterior.npz").exists()


def test_a_server_that_was_killed_goes_on_and_asks_nothing_twice(tmp_path, client, expected):
    asked = []
    for lives_for in (7, 45):
        one = client("--checkpoint", tmp_path / "run")
        answered = 0
        while answered < lives_for:
            message = one.hear()
            if message["type"] == "ask":
                one.say(value(message))
                asked.append(message["id"])
                answered += 1
        one.hear()  # the next question or the progress: what was said before has arrived
        one.say("?")
        while one.hear()["type"] != "error":
            pass
        one.process.kill()
    one = client("--checkpoint", tmp_path / "run")
    done = one.answer(value)
    assert one.end() == (0, "")
    assert done["elbo"] == expected.elbo
    asked += [message["id"] for message in one.heard("ask")]
    assert sorted(asked) == list(range(expected.n_evals))


def test_a_client_that_went_away_does_not_take_the_fit_along(tmp_path, client):
    one = client()
    one.answer(value, until="progress")
    one.process.stdout.close()
    one.process.stdin.close()
    assert one.process.wait() == 0
    assert one.process.stderr.read() in ("", "qbvi serve: the output cannot be written ([Errno 32] Broken pipe)\n")
    assert qbvi.load(tmp_path / "posterior.npz").record.n_iterations == 1


def test_both_sides_may_talk_at_once(tmp_path, client):
    """The points of one step, and their answers, are more than the pipes hold: a client that answers at once must not lock up."""
    (tmp_path / "prior.toml").write_text(
        '[a_parameter_with_a_long_name]\ndistribution = "Normal"\nloc = 0\nscale = 1\nshape = [60]\n[fit]\nmax_evals = 200\nseed = 1\n'
    )
    one = client(prior=tmp_path / "prior.toml")
    done = one.answer(lambda message: {"id": message["id"], "value": -1.0, "padding": "x" * 5000})
    assert one.end() == (0, "")
    assert done["n_evals"] <= 200


# --- what the server reads


def test_a_line_that_is_too_long_is_an_error_and_the_next_one_counts():
    long = b"x" * (_LONGEST_LINE + 1)
    there, here = os.pipe()
    with open(there, "rb") as stream, open(here, "wb") as file:
        inbox = _Inbox(stream)
        inbox.open()
        file.write(long + b'\n\n{"id": 3, "value": 1}\n{"type": "stop"}')
        file.close()
        bad, tell, stop = inbox
    assert bad == {"type": "bad", "why": "a line must have at most 1,048,576 bytes, got more"}
    assert (tell["id"], tell["value"], stop) == (3, 1.0, {"type": "stop"})


def test_only_so_many_messages_wait():
    there, here = os.pipe()
    with open(there, "rb") as stream, open(here, "wb", buffering=0) as file:
        inbox = _Inbox(stream)
        inbox.open()
        file.writelines(b"?\n" for _ in range(_LEAST_WAITING + 500))
        while inbox._waiting.qsize() < _LEAST_WAITING:
            time.sleep(0.01)
        assert inbox._waiting.qsize() == _LEAST_WAITING
        inbox.allow(_LEAST_WAITING + 100)
        while inbox._waiting.qsize() < _LEAST_WAITING + 100:
            time.sleep(0.01)
        assert inbox._waiting.qsize() == _LEAST_WAITING + 100
        file.close()
        assert sum(message["type"] == "bad" for message in inbox) == _LEAST_WAITING + 500


# --- prior files and arguments


def read(tmp_path, text):
    (tmp_path / "prior.toml").write_text(text)
    return read_prior(tmp_path / "prior.toml", known=("seed", "family"))


def test_priors_by_name(tmp_path):
    text = """
    [mu]
    distribution = "Normal"
    loc = [0, 1]
    scale = 2.5
    [w]
    distribution = "Dirichlet"
    concentration = [1, 1, 1]
    [tau]
    distribution = "Flat"
    shape = [2]
    support = "Positive"
    [p]
    distribution = "Flat"
    shape = []
    support = { kind = "Interval", low = 0, high = 2 }
    [fit]
    seed = 4
    family = [["mu", "w"], ["tau", "p"]]
    """
    prior, options = read(tmp_path, text)
    assert list(prior) == ["mu", "w", "tau", "p"]
    assert repr(prior["mu"]) == repr(qbvi.Normal([0, 1], 2.5))
    assert prior["tau"].support == qbvi.Positive()
    assert prior["p"].support == qbvi.Interval(0, 2)
    assert options == {"seed": 4, "family": [["mu", "w"], ["tau", "p"]]}


def test_tables_of_tables_are_nested_parameters(tmp_path):
    text = '[disc.r]\ndistribution = "Normal"\nloc = 0\nscale = 1\n[s]\ndistribution = "HalfNormal"\nscale = 1'
    prior, _ = read(tmp_path, text)
    assert repr(prior) == "{'disc': {'r': Normal(loc=0.0, scale=1.0)}, 's': HalfNormal(scale=1.0)}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have a table for each parameter"),
        ("[a", "cannot be read as TOML"),
        ("a = 1", r"\[a\] must be a table with a distribution"),
        ("[a]\nloc = 1", r"\[a\] must be a table with a distribution"),
        ('[a]\ndistribution = "Norml"', r"distribution of \[a\] must be one of .*did you mean 'Normal'"),
        ('[a]\ndistribution = "LogPrior"', r"distribution of \[a\] must be one of"),
        (
            '[a]\ndistribution = "Normal"\nlok = 0',
            r"\[a\] has the key 'lok', .*; its keys are .*loc.*, scale.*, shape \(optional\); did you mean 'loc'",
        ),
        (
            '[a]\ndistribution = "Normal"\nmean = 0\nsd = 1',
            "the key 'mean', which Normal does not have; its keys are loc",
        ),
        (
            '[a]\ndistribution = "Gamma"\nalpha = 2',
            r"\[a\] must have the key 'beta'; the keys of Gamma are alpha, beta",
        ),
        ('[a]\ndistributon = "Gamma"', r"\[a\] must be a table with a distribution.*did you mean 'distribution'"),
        ('[a.b]\ndistribution = "Normal"\nmu = 0', r"\[a.b\] has the key 'mu'"),
        (
            '[a]\ndistribution = "Normal"\nloc = 0\nscale = -1',
            r"\[a\] does not describe a Normal: `scale` must be positive",
        ),
        ('[a]\ndistribution = "Flat"\nshape = [1]\nsupport = "Open"', "`support` must be one of"),
        (
            '[a]\ndistribution = "Normal"\nloc = 0\nscale = 1\n[fit]\nsede = 1',
            r"\[fit\] .*got 'sede'; did you mean 'seed'",
        ),
    ],
)
def test_prior_files_that_do_not_say_what_they_should(tmp_path, text, message):
    with pytest.raises(PriorFileError, match=message):
        read(tmp_path, text)


def test_requests_that_make_no_sense_are_refused_on_the_error_stream(tmp_path, capsys):
    (tmp_path / "prior.toml").write_text('[a]\ndistribution = "Normal"\nloc = 0\nscale = 1\n[fit]\nmax_evals = 2\n')
    assert main(["serve", "--prior", str(tmp_path / "prior.toml")]) == 2
    assert "`max_evals` must allow for the" in capsys.readouterr().err
    assert main(["serve", "--prior", str(tmp_path / "nothing.toml")]) == 2
    assert "nothing.toml" in capsys.readouterr().err
    assert main(["serve", "--prior", str(EXAMPLES / "prior.toml"), "--out", str(tmp_path / "nowhere" / "x.npz")]) == 2
    assert "--out must be in an existing folder" in capsys.readouterr().err
    for arguments in ([], ["serve"], ["unknown"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
    assert os.listdir(tmp_path) == ["prior.toml"]
