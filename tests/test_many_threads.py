"""Many threads at once: fits that share what the user gave, and questions to one posterior.

With the global lock threads meet in the core, which gives it up; without it they meet everywhere.
Each must get, to the bit, what a thread alone gets.
"""

import sys
import sysconfig
import threading
from functools import partial

import numpy as np
import pytest

import epfast
from epfast import losses, schemes

THREADS, TURNS = 6, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = np.where(X @ [1.0, -2.0, 0.5, 0.0] + RNG.logistic(size=120) > 0, 1, -1)
COUNTS = RNG.poisson(np.exp(0.3 * X[:, 0]))
CLASSES = X[:, :3].argmax(axis=1)
NEW = RNG.normal(size=(30, 4))
K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
K_NEW = np.exp(-0.5 * ((NEW[:, None] - X) ** 2).sum(-1))
PLAYERS = np.add(RNG.integers(0, 10, size=(2, 60)), [[0], [10]])
EP = epfast.EP(sweeps=30)
STUDENT, LAPLACE, LOGISTIC = losses.StudentT(4.0, 0.5), schemes.Laplace(), losses.Logistic()


def chain(schedule):
    """A graph of its own in each thread."""
    g = epfast.Graph()
    skill = g.gaussian(20, variance=1.0)
    g.add("probit", skill[PLAYERS[0]] - skill[PLAYERS[1]], 1, noise=1.0)
    return g.fit(schedule)[skill].mean


def mean(fit, *data, **choices):
    return fit(*data, **choices).mean


#: fits whose loss, scheme, schedule and arrays are the same objects in all threads
FITS = {
    "rows": partial(mean, epfast.fit_linear, X, Y, loss=LOGISTIC, schedule=EP),
    "parallel": partial(
        mean, epfast.fit_linear, X, Y, schedule=epfast.EP(sweeps=20, order="parallel")
    ),
    "Laplace": partial(mean, epfast.fit_linear, X, Y, scheme=LAPLACE, batch_size=10, schedule=EP),
    "minibatches": partial(
        *(mean, epfast.fit_linear, X, Y),
        posterior="factorized",
        batch_size=10,
        scheme="variational",
    ),
    "Gauss quadrature": partial(mean, epfast.fit_linear, X, Y, scheme="quadrature", schedule=EP),
    "counts": partial(mean, epfast.fit_linear, X, COUNTS, loss="poisson", schedule=EP),
    "outliers": partial(mean, epfast.fit_linear, X, X[:, 0], loss=STUDENT, schedule=EP),
    "classes": partial(mean, epfast.fit_linear, X, CLASSES, loss="multiclass", schedule=EP),
    "shared site": partial(mean, epfast.fit_linear, X, Y, schedule=epfast.SEP(sweeps=5, tol=0.0)),
    "shards": partial(mean, epfast.fit_linear, X, Y, schedule=epfast.DEP(sweeps=5, tol=0.0)),
    "one pass": partial(mean, epfast.fit_linear, X, Y, schedule=epfast.ADF()),
    "wide": partial(mean, epfast.fit_linear, X[:3], Y[:3], schedule=EP),
    "process": partial(mean, epfast.fit_gp, K, Y, loss="probit", schedule=EP),
    "flipped labels": partial(
        *(mean, epfast.fit_gp, K, Y), loss="noisy_step", schedule=epfast.DoubleLoop()
    ),
    "graph": partial(chain, EP),
    "network": lambda: epfast.fit_network(X, X[:, 0], hidden=(8,), rng=1).predict(NEW),
    "mixture": lambda: epfast.fit_mixture(X[:40, :2], n_components=2, rng=1).log_evidence,
    "two threads": partial(mean, epfast.fit_linear, X, Y, schedule=EP, n_jobs=2),
}


def together(question):
    """What each of many threads gets, several times, all asking at once."""
    start, answers, errors = threading.Barrier(THREADS), [], []

    def ask():
        start.wait(60)
        try:
            for _ in range(TURNS):
                answers.append(question())
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=ask) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(answers) == THREADS * TURNS
    return answers


@pytest.mark.full
@pytest.mark.parametrize("name", FITS)
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_fits_that_share_what_the_user_gave(name):
    alone = FITS[name]()
    for answer in together(FITS[name]):
        np.testing.assert_array_equal(answer, alone)


LINEAR = {
    "predictions": lambda post: post.predict_proba(NEW),
    "latent values": lambda post: np.concatenate(post.predict_latent(NEW)),
    "rows left out": lambda post: post.loo_log_predictive(),
    "draws": lambda post: post.sample(5, np.random.default_rng(3)),
    "the residual": lambda post: post.residual,
    "the evidence": lambda post: post.log_evidence,
    "covariance": lambda post: post.covariance,
    "the check": lambda post: post.check(100).shifts,
    "rows that come": lambda post: post.partial_fit(NEW, np.ones(30)).mean,
    "rows that go": lambda post: post.remove([0, 5, 7]).mean,
}


@pytest.mark.parametrize("name", LINEAR)
def test_questions_to_one_posterior(name):
    def fitted():
        return epfast.fit_linear(X, Y, schedule=EP)

    alone, post = LINEAR[name](fitted()), fitted()  # the second has answered nothing yet
    for answer in together(lambda: LINEAR[name](post)):
        np.testing.assert_array_equal(answer, alone)


PROCESS = {
    "predictions": lambda post: post.predict_proba(K_NEW, np.ones(30)),
    "latent values": lambda post: np.concatenate(post.predict_latent(K_NEW, np.ones(30))),
    "rows left out": lambda post: post.loo_log_predictive(),
    "the gradient": lambda post: post.log_evidence_gradient(K),
    "the residual": lambda post: post.residual,
    "covariance": lambda post: post.covariance,
}


@pytest.mark.parametrize("name", PROCESS)
def test_questions_to_one_process(name):
    def fitted():
        return epfast.fit_gp(K, Y, loss="probit", schedule=EP)

    alone, post = PROCESS[name](fitted()), fitted()
    for answer in together(lambda: PROCESS[name](post)):
        np.testing.assert_array_equal(answer, alone)


def test_moments_and_factors_without_an_object_of_ones_own():
    m, v = RNG.normal(size=500), RNG.uniform(0.1, 3.0, size=500)
    y = np.sign(RNG.normal(size=500))

    def ask():
        moments = epfast.backend.tilted_moments(STUDENT, m, m, v)
        labels = epfast.backend.tilted_moments(LOGISTIC, y, m, v, power=0.7)
        fit = epfast.backend.fit_minibatch("logistic", X, np.zeros(4), np.ones(4))
        return np.concatenate([*moments, *labels, *map(np.ravel, fit)])

    alone = ask()
    for answer in together(ask):
        np.testing.assert_array_equal(answer, alone)


def test_estimators_in_threads():
    pytest.importorskip("sklearn")
    model = epfast.LinearClassifier().fit(X, Y)
    alone = model.predict_proba(NEW)
    fit = lambda: epfast.LinearClassifier().fit(X, Y).predict_proba(NEW)  # noqa: E731
    for answer in [*together(fit), *together(lambda: model.predict_proba(NEW))]:
        np.testing.assert_array_equal(answer, alone)


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython has the global lock"
)
def test_the_global_lock_stays_off(run_python):
    """An extension that does not declare itself compatible would turn it on at import."""
    code = "import epfast, epfast.estimators, sys; print(sys._is_gil_enabled())"
    assert run_python(code).stdout.strip() == "False"
    assert not sys._is_gil_enabled()
