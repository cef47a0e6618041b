"""Models behind UM-Bridge, a protocol over HTTP: log-densities, or likelihoods of predictions.

The protocol is four requests with JSON bodies, so the standard library is enough to speak it.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qbvi.arguments import a_function, positive_number, shown, whole_number
from qbvi.distributions import Flat
from qbvi.model import Model
from qbvi.naming import nearest
from qbvi.points import items
from qbvi.problem import Problem

__all__ = ["UMBridgeError", "umbridge"]

_PROTOCOL = 1.0
_SECONDS_TO_CONNECT = 30.0  # for the questions before a fit, which every server answers at once


class UMBridgeError(RuntimeError):
    """An UM-Bridge server cannot be reached, or it answers with an error."""


def umbridge(  # noqa: PLR0913 - where the model is, what its output means, and how it is called
    url: str,
    name: str,
    prior: Any = None,
    *,
    log_likelihood: Callable[..., Any] | None = None,
    init: Any = None,
    config: Mapping[str, Any] | None = None,
    parallel: int = 1,
    timeout: float | None = None,
) -> Problem:
    """A problem from a model behind UM-Bridge, in any language and on any machine.

    The output of the model is one of

    - a log-density of prior times likelihood, such as the benchmarks called ``posterior``: leave
      out ``prior`` and give ``init``,
    - a log-likelihood: give ``prior``,
    - predictions, such as the models called ``forward``: give ``prior`` and ``log_likelihood``, a
      function of the predictions.

    Parameters
    ----------
    url : str
        Address of the server or of its load balancer, such as ``"http://localhost:4242"``.
    name : str
        Name of the model there.
    prior : Any
        As for `qbvi.fit`, with as many entries as the model has inputs. By default flat.
    log_likelihood : callable, optional
        Output of the model (m,) -> float. If the model has several outputs, it gets one array for
        each.
    init : array, optional
        Where to start.
    config : mapping, optional
        Settings that the model gets with each call.
    parallel : int
        Most calls at a time. A load balancer passes them on to as many copies of the model.
    timeout : float, optional
        Seconds that one call may take. By default there is no limit.

    Returns
    -------
    Problem
        ``problem.fit(seed=1)`` fits it.

    Examples
    --------
    The log-density ``posterior`` of a server, with up to eight calls at a time::

        problem = qbvi.umbridge("http://localhost:4242", "posterior", init=[0.0, 3.0], parallel=8)
        fit = problem.fit(seed=1, checkpoint="run.qbvi")

    Predictions of the model ``forward``, with measurements ``y`` and their errors ``sd``::

        def log_likelihood(predicted):
            return -0.5 * np.sum(((y - predicted) / sd) ** 2)


        prior = {"stiffness": qbvi.LogNormal(0, 1), "load": qbvi.Normal(0, 2)}
        fit = qbvi.umbridge(url, "forward", prior, log_likelihood=log_likelihood).fit(seed=1)
    """
    a_function("log_likelihood", log_likelihood, optional=True)
    limit = None if timeout is None else positive_number("timeout", timeout)
    server = _Server(_address(url), limit)
    model = _Model(server, _known(server, name), dict(config or {}), log_likelihood=log_likelihood)
    model = replace(model, input_sizes=tuple(model.sizes("Input")))
    _check_output(model)
    if prior is None:
        prior = _flat(model, init)
    _check_prior(prior, model)
    parallel = whole_number("parallel", parallel)
    options = {"executor": ThreadPoolExecutor(parallel)} if parallel > 1 else {}
    return Problem(model, prior, init, options)


@dataclass(frozen=True)
class _Server:
    """Requests to one address, and what their errors mean."""

    url: str
    timeout: float | None = None

    def get(self, path: str) -> Any:
        """The answer to a question without a body."""
        return self._answer(urllib.request.Request(f"{self.url}/{path}"), _SECONDS_TO_CONNECT)

    def post(self, path: str, key: str, content: Mapping[str, Any], timeout: float | None) -> Any:
        """What the answer to a request has under a key."""
        body = json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        answer = self._answer(urllib.request.Request(f"{self.url}/{path}", body, headers), timeout)
        if not isinstance(answer, dict) or key not in answer:
            raise UMBridgeError(_foreign(self.url, answer))
        return answer[key]

    def _answer(self, request: urllib.request.Request, timeout: float | None) -> Any:
        status = ""
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            text, status = error.read(), f"{error.code} {error.reason}"  # the body explains the error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UMBridgeError(_unreachable(self.url, error)) from error
        try:
            answer = json.loads(text)
        except ValueError:
            words = text.decode(errors="replace")
            raise UMBridgeError(_failed(self.url, status) if status else _foreign(self.url, words)) from None
        if isinstance(answer, dict) and "error" in answer:
            said = answer["error"] if isinstance(answer["error"], dict) else {"message": answer["error"]}
            msg = f"the model at {self.url} answers {said.get('type', 'an error')}: {said.get('message', '')}"
            raise UMBridgeError(msg)
        return answer


@dataclass(frozen=True, eq=False)
class _Model:
    """The function of one point: flat values to the inputs of the model, its output to a number."""

    server: _Server
    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    input_sizes: tuple[int, ...] = ()
    log_likelihood: Callable[..., Any] | None = None

    def __call__(self, point: Any, *args: Any) -> Any:
        flat = np.concatenate([np.ravel(value) for _, value in items(point)])
        ends = np.cumsum(self.input_sizes)[:-1]
        inputs = [part.tolist() for part in np.split(flat, ends)]
        outputs = [np.asarray(part, dtype=np.float64) for part in self._post("Evaluate", "output", {"input": inputs})]
        return float(outputs[0][0]) if self.log_likelihood is None else self.log_likelihood(*outputs, *args)

    def sizes(self, what: str) -> list[int]:
        """Lengths of the inputs or outputs."""
        return [int(n) for n in self._post(f"{what}Sizes", f"{what.lower()}Sizes", {}, _SECONDS_TO_CONNECT)]

    def _post(self, path: str, key: str, content: Mapping[str, Any], timeout: float | None = None) -> Any:
        full = {"name": self.name, "config": dict(self.config), **content}
        return self.server.post(path, key, full, timeout or self.server.timeout)


def _address(url: Any) -> str:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        msg = f"`url` must be an address such as 'http://localhost:4242', got {shown(url)}"
        raise ValueError(msg)
    return url.rstrip("/")


def _known(server: _Server, name: Any) -> str:
    """The name of a model of the server that can be evaluated."""
    info = server.get("Info")
    if not isinstance(info, dict) or info.get("protocolVersion") != _PROTOCOL or "models" not in info:
        msg = f"the server at {server.url} does not speak version {_PROTOCOL} of UM-Bridge: its /Info is {shown(info)}"
        raise UMBridgeError(msg)
    models = [str(model) for model in info["models"]]
    if name not in models:
        close = nearest(name, dict.fromkeys(models)) if isinstance(name, str) else ""
        msg = f"`name` must be a model of {server.url}, one of {', '.join(map(repr, models))}, got {shown(name)}{close}"
        raise ValueError(msg)
    support = server.post("ModelInfo", "support", {"name": name}, _SECONDS_TO_CONNECT)
    if not support.get("Evaluate", False):
        msg = f"the model {name!r} of {server.url} cannot be evaluated: it supports {[k for k, v in support.items() if v]}"
        raise ValueError(msg)
    return str(name)


def _check_output(model: _Model) -> None:
    sizes = model.sizes("Output")
    if model.log_likelihood is None and sizes != [1]:
        msg = (
            f"the model {model.name!r} must return one number, a log-density, got outputs of sizes {sizes}; "
            "give log_likelihood=, a function of these outputs, and a prior"
        )
        raise ValueError(msg)


def _flat(model: _Model, init: Any) -> Flat:
    if model.log_likelihood is not None:
        msg = "`prior` must be given with `log_likelihood`; write qbvi.Flat(shape=...) if there is none"
        raise ValueError(msg)
    if init is None:
        msg = (
            f"`prior` or `init` must be given: if {model.name!r} is a log-likelihood, pass its prior; "
            "if it is a log-density of prior times likelihood, pass a point to start from"
        )
        raise ValueError(msg)
    return Flat(sum(model.input_sizes))


def _check_prior(prior: Any, model: _Model) -> None:
    n, size = len(Model(prior).labels), sum(model.input_sizes)
    if n != size:
        msg = (
            f"`prior` must have {size} entries in all, as the model {model.name!r} has inputs of sizes "
            f"{list(model.input_sizes)}, got {n}"
        )
        raise ValueError(msg)


def _unreachable(url: str, error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return (
        f"no UM-Bridge server answers at {url} ({reason}): check the address and that the server runs; during a fit, "
        "start it again and go on with checkpoint=..., or pass on_failure='retry' if it comes back by itself"
    )


def _failed(url: str, status: str) -> str:
    return f"the model at {url} failed without a reason ({status}): the output of the server has its traceback"


def _foreign(url: str, answer: Any) -> str:
    return f"the server at {url} does not speak UM-Bridge: it answers {shown(answer)[:60]}"
