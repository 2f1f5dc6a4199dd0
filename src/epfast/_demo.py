"""The demonstration: a classifier on real data, with its predictions, coefficients and check."""

from __future__ import annotations

import importlib.util
import time
import warnings
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, ndtr

import epfast
from epfast import _checks, plots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epfast._arrays import Indices
    from epfast.gaussian.average import IntegratedPosterior
    from epfast.gaussian.linear_posterior import LinearPosterior
    from epfast.inference.certificates import Check

#: coefficients to print
SHOWN = 5
#: coefficients in the picture
DRAWN = 12
#: importance draws of the check
CHECK_DRAWS = 4000


def run(pictures: Path | None) -> int:
    """Fit three quarters of the rows of a data set, predict the others; return the exit status.

    pictures: the folder for a picture, None for none.
    """
    begin = time.perf_counter()
    if not _checks.installed("sklearn"):
        print("The demo reads a data set of scikit-learn: pip install 'epfast[sklearn,plot]'")
        return 1
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    if pictures is not None and importlib.util.find_spec("matplotlib") is None:
        print("No picture: matplotlib is not installed (pip install 'epfast[plot]').\n")
        pictures = None
    data = load_breast_cancer()  # target 1: benign
    names = data.feature_names
    X_train, X_test, y_train, y_test = train_test_split(data.data, data.target, random_state=0)
    scaler = StandardScaler().fit(X_train)
    X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
    print(
        f"Is a breast tumour benign? {len(names)} measurements; {len(y_train)} tumours to "
        f"fit, {len(y_test)} held out.\n"
    )
    print(f"{'':40} {'log loss':>9} {'accuracy':>9} {'fit, ms':>8}")
    model = epfast.LinearClassifier()
    contestants = {
        "scikit-learn, LogisticRegression()": LogisticRegression(),
        "scikit-learn, LogisticRegressionCV()": LogisticRegressionCV(
            scoring="neg_log_loss", max_iter=1000
        ),
        "epfast, LinearClassifier()": model,
    }
    for name, contestant in contestants.items():
        before = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about defaults of scikit-learn
            contestant.fit(X_train, y_train)
        milliseconds = 1e3 * (time.perf_counter() - before)
        loss = log_loss(y_test, contestant.predict_proba(X_test))
        accuracy = (contestant.predict(X_test) == y_test).mean()
        print(f"{name:40} {loss:9.3f} {accuracy:9.3f} {milliseconds:8.0f}")
    print(f"\nThe evidence chose the prior variance of the weights: {model.prior_variance_:.2f}.")

    by_mean = expit(model.predict_latent(X_test)[0])
    averaged = model.predict_proba(X_test)[:, 1]
    odd = np.abs(by_mean - averaged).argmax()
    print(
        "The probability that a tumour is benign is an average over all weights that the data\n"
        f"leave possible. For one of the tumours held out it is {averaged[odd]:.2f}, where the "
        f"mean weights alone\nsay {by_mean[odd]:.2f}. The tumour was "
        f"{('malignant', 'benign')[y_test[odd]]}."
    )

    post = model.posterior_
    sd = np.sqrt(post.variance)
    surest = np.argsort(-np.abs(post.mean[:-1]) / sd[:-1])  # without the intercept, the last
    print("\nThe surest coefficients, each per standard deviation of its column:")
    for k in surest[:SHOWN]:
        above = ndtr(post.mean[k] / sd[k])
        print(f"  {names[k]:24} {post.mean[k]:6.2f} ± {sd[k]:.2f}   P(> 0) = {above:.3f}")

    check = post.check(draws=CHECK_DRAWS)
    print(f"\nIs that the posterior? Importance sampling says:\n{fill(str(check), 88)}")
    if pictures is not None:
        picture = pictures / "epfast_demo.png"
        _draw(post, check, surest[:DRAWN], names, picture)
        print(f"\nPicture of the coefficients, and of the check: {picture}")
    print(f"\n{time.perf_counter() - begin:.1f} s in all.")
    return 0


def _draw(
    post: LinearPosterior | IntegratedPosterior,
    check: Check,
    some: Indices,
    names: Sequence[str],
    picture: Path,
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    plots.coefficients(post, names=[post.labels[k] for k in some], ax=left)
    left.set_yticks(range(len(some)), [str(names[k]) for k in some])
    left.set_title("what points to a benign tumour", fontsize=10)
    plots.check(check, ax=right)
    figure.savefig(picture, dpi=130)
