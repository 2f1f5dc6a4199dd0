"""fit_gp: bad input gets its error, odd good input the plain result."""

from functools import partial

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import EP, DoubleLoop, KernelColumns, fit_gp, incomplete_cholesky
from epfast.schemes import Variational
from tests.oracles.bad_values import (
    BAD_COUNT,
    BAD_LABELS,
    BAD_LOSS,
    BAD_NAME,
    BAD_OPTIONAL,
    BAD_SEED,
    HUGE_INT,
    INF,
    LAYOUTS,
    NAN,
    NOT_FINITE,
    NOT_NUMBERS,
    N,
    X,
    Y,
    bad_arrays,
    bad_contents,
    check_error,
    every_bad_value,
    frozen,
    put,
)
from tests.oracles.data import rbf

K = frozen(rbf(X, variance=2.0))


def fit(K=K, y=Y, **arguments):
    return fit_gp(K, y, **({"schedule": EP(sweeps=2, tol=0.0)} | arguments))


low_rank = partial(fit, rank=5)
GP, LOW = fit(), low_rank()
BAD_KERNEL = [
    np,
    *[value for value in bad_arrays(K) if getattr(value, "shape", None) != (N - 1, N)],
    *[K[:-1], K[:-1, :-1][:0], 5.0, np.triu(K), K + np.eye(N, k=1), -K, sparse.csr_array(K)],
    *[K[:, ::-1] * [[1.0], *[[2.0]] * (N - 1)], [[HUGE_INT] * N] * N],
]
BAD_STAR = [K[:, :-1], K[0], K[None], 5.0, None, "text", put(K, NAN), put(K, INF), *bad_contents(K)]
BAD_DIAGONAL = [np.ones(N - 1), -np.ones(N), "text", put(np.ones(N), NAN), -1.0]
NOT_POSITIVE = [-1e-9, *NOT_NUMBERS, *NOT_FINITE]

KEYWORDS = [
    ("loss", [fit, low_rank], BAD_LOSS),
    ("scheme", [fit, low_rank], [*BAD_NAME, Variational, len]),
    ("scheme", [partial(fit, loss="noisy_step"), low_rank], ["relaxed" * 2, "quick"]),
    ("schedule", [fit, low_rank], [EP, "EP", 5, [EP()], "double_loop"]),
    ("beta", [fit, low_rank], BAD_OPTIONAL),
    ("jitter", [fit], NOT_POSITIVE),
    ("rank", [fit], BAD_COUNT),
    ("rank_tol", [low_rank], NOT_POSITIVE),
    ("batch_size", [low_rank], BAD_COUNT),
    ("start", [fit], [5, [1], GP.state, GP.mean, LOW]),
    ("start", [low_rank], [5, [1], GP.state, GP.mean, GP]),
    ("overwrite_K", [fit], [1, "yes", None, [True]]),
    ("callback", [fit, low_rank], [5, "stop", [len]]),
    ("progress", [fit, low_rank], [5, "stop", [len], None]),
    ("K_star", [partial(GP.predict_latent, K_star_star=np.ones(N))], BAD_STAR),
    ("K_star_star", [partial(GP.predict_latent, K)], BAD_DIAGONAL),
    ("size", [partial(GP.sample, rng=1), partial(LOW.sample, rng=1)], [-1, 1.5, "3", None, True]),
    ("rng", [partial(GP.sample, 3), partial(LOW.sample, 3)], [*BAD_SEED, np.random.RandomState]),
    ("path", [GP.save, LOW.save], [None, 5, 2**40, True, 1.5, [1]]),
]
POSITIONS = [
    ("K", fit, BAD_KERNEL),
    ("K", lambda v: fit(v[:, ::1], overwrite_K=True), [K, np.array(K, dtype=np.float32)]),
    ("K", lambda v: fit(v), [KernelColumns(np.diag(K), lambda j: K[:, j])]),
    ("y", partial(fit, K), BAD_LABELS),
    ("y", partial(low_rank, K), BAD_LABELS),
    ("start", lambda v: fit(K[:9, :9], Y[:9], start=v), [GP]),
]


@every_bad_value(KEYWORDS, POSITIONS)
def test_error_names_the_argument(name, call, value):
    check_error(name, call, value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [None, 5])
def test_layouts(layout, rank):
    given = LAYOUTS[layout](np.array(K))
    labels = Y if layout == "objects" else LAYOUTS[layout](np.array(Y))
    one, plain = fit(given, labels, rank=rank), fit(rank=rank)
    np.testing.assert_allclose(one.mean, plain.mean, rtol=1e-12)
    assert one.log_evidence == pytest.approx(plain.log_evidence, rel=1e-12)
    np.testing.assert_array_equal(np.asarray(given, dtype=float), K)


def test_a_factor_is_the_process_of_its_rank():
    factor = incomplete_cholesky(K, 5)
    np.testing.assert_allclose(fit(factor).mean, LOW.mean, rtol=1e-12)
    with pytest.raises(ValueError, match=r"^K is a LowRankFactor; allowed beside it: rank=None"):
        fit(factor, rank=3)


def test_a_kernel_that_is_not_a_covariance():
    bad = np.eye(4)
    bad[0, 1] = bad[1, 0] = 2.0
    with pytest.raises((ValueError, FloatingPointError), match=r"\bK\b|overflow"):
        fit_gp(bad, Y[:4], schedule=DoubleLoop())
    assert isinstance(fit_gp(np.eye(1), [1]), epfast.GPPosterior)
