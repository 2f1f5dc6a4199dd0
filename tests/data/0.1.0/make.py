"""Makes the files of this folder: run once, in this folder, with epfast 0.1.0 (5a57897).

``NAME.npz`` is what ``save`` wrote of a fit, and ``numbers.json`` holds what 0.1.0 said of the same
fits before they were saved: mean, variance, log evidence, predictions, leave-one-out. It does not
run with later versions, whose arguments differ; tests/test_storage.py reads the files.
"""

import json
import warnings

import numpy as np

import epfast

warnings.simplefilter("ignore")
rng = np.random.default_rng(2016)
n, d = 12, 3
X = rng.normal(size=(n, d)).round(3)
y = np.where(X @ [1.0, -1.0, 0.5] + rng.normal(size=n) > 0, 1.0, -1.0)
weights = rng.choice([0.0, 0.5, 1.0, 3.0], n)
X_new = rng.normal(size=(4, d)).round(3)
K = 2.0 * np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(-1))
K_star = 2.0 * np.exp(-0.5 * ((X_new[:, None] - X[None]) ** 2).sum(-1))
A = rng.normal(size=(d, d))
ROWS = {"posterior": "full", "batch_size": None, "scheme": "exact"}
EP = epfast.EP


def linear(**given):
    return epfast.fit_linear(X, y, **given)


RAMP = epfast.PiecewiseLinear((-1.0, 1.0), (0.0, -1.0, 0.0), 2.0, (0.25, 0.0))
POSTERIORS = {
    "factorized": linear(loss=epfast.NoisyStep(0.05), beta=0.7, batch_size=5, schedule=EP(3)),
    "factorized_adf": linear(loss="probit", prior_variance=[1.0, 2.0, 3.0], schedule=epfast.ADF()),
    "factorized_custom": linear(loss=epfast.CustomLoss(lambda m: np.logaddexp(0.0, -m))),
    "full": linear(prior_precision=A @ A.T + np.eye(d), schedule=EP(power=0.8), **ROWS),
    "full_adf": linear(loss="squared_hinge", schedule=epfast.ADF(), **ROWS),
    "full_ramp": linear(loss=RAMP, beta=2.0, prior_variance=2.0, schedule=EP(5), **ROWS),
    "full_minibatches": linear(posterior="full", batch_size=5, scheme="laplace"),
    "full_weighted": linear(loss="probit", weights=weights, prior_variance=2.0, **ROWS),
    "shared": linear(
        loss="probit", prior_variance=2.0, schedule=epfast.SEP(3, damping=0.3), **ROWS
    ),
    "shared_groups": linear(prior_variance=2.0, schedule=epfast.DAEP(3, 3, damping=0.2), **ROWS),
    "shards": linear(loss="quasi01", prior_variance=2.0, schedule=epfast.DEP(2), **ROWS),
    "low_rank": epfast.fit_gp(K, y, rank=5),
    "low_rank_shared": epfast.fit_gp(K, y, rank=4, schedule=epfast.DSEP(2, 3, damping=0.2)),
}


def numbers(name, post):
    new = (K_star[:, post.pivots], 2.0) if name.startswith("low_rank") else (X_new,)
    said = {"class": type(post).__name__, "log_evidence": post.log_evidence}
    said |= {"converged": post.converged, "sweeps": post.n_sweeps, "refused": post.n_refused}
    said |= {"mean": post.mean, "variance": post.variance}
    said["latent"] = post.predict_latent(*new)
    said["proba"] = post.predict_proba(*new)
    if not name.startswith("factorized") and post.sites is not None:
        said["loo"] = post.loo_log_predictive()
    if hasattr(post, "residual"):
        said["residual"] = post.residual
    return said


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else list(value)


given = {"X": X, "y": y, "weights": weights, "K": K, "X_new": X_new, "K_star": K_star}
said = {name: numbers(name, post) for name, post in POSTERIORS.items()}
with open("numbers.json", "w") as file:
    json.dump({"version": epfast.__version__, "given": given, "said": said}, file, default=plain)
for name, post in POSTERIORS.items():
    post.save(f"{name}.npz")
