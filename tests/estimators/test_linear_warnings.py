"""Warnings of estimators, and epfast where scikit-learn is missing."""

import threading
import warnings

import numpy as np
import pytest

import epfast
from epfast import EP

pytest.importorskip("sklearn")

import sklearn.exceptions
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from epfast import LinearClassifier
from epfast.estimators import ConvergenceWarning

RNG = np.random.default_rng(5)
X = RNG.normal(size=(80, 3))
Y = np.where(X @ [1.0, -2.0, 0.0] + RNG.logistic(size=80) > 0, 1, -1)
ROUGH = LinearClassifier(prior_variance=1.0, schedule=EP(1, 1e-12))

# ---- warnings ----


def calls():
    chunk = LinearClassifier(prior_variance=1.0, schedule=EP(1, 1e-12))
    return {
        "fit": lambda: ROUGH.fit(X, Y),
        "pipeline": lambda: make_pipeline(StandardScaler(), ROUGH).fit(X, Y),
        "first chunk": lambda: chunk.partial_fit(X, Y, classes=[-1, 1]),
        "next chunk": lambda: chunk.partial_fit(X, Y),
    }


def test_both_kinds_at_the_line_of_the_user():
    for name, call in calls().items():
        with pytest.warns(epfast.ConvergenceWarning, match="did not converge") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__], name
        (warning,) = caught
        assert issubclass(warning.category, sklearn.exceptions.ConvergenceWarning)
        assert warning.category is ConvergenceWarning


@pytest.mark.parametrize(
    "category", [epfast.ConvergenceWarning, sklearn.exceptions.ConvergenceWarning]
)
def test_filters_of_either_library_act(category):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", category)
        ROUGH.fit(X, Y)
        ROUGH.fit(X, np.arange(80) % 3)


def test_fits_in_threads_leave_the_filters_alone():
    """Filters belong to the process: a fit that changed them would lose warnings of others."""
    before = list(warnings.filters)
    model = LinearClassifier(loss="probit")
    threads = [threading.Thread(target=model.fit, args=(X, Y)) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert warnings.filters == before
    for thread in threads:
        thread.join()
    assert warnings.filters == before


# ---- without scikit-learn ----


@pytest.mark.full
def test_lazy_import(run_python):
    run_python(
        "import sys, epfast\n"
        "assert 'sklearn' not in sys.modules\n"
        "assert 'LinearClassifier' in epfast.__all__ and 'LinearClassifier' in dir(epfast)\n"
        "assert 'sklearn' not in sys.modules\n"
        "from epfast import *\n"
        "assert LinearClassifier is epfast.LinearClassifier\n"
        "assert 'sklearn' in sys.modules\n"
    )
    with pytest.raises(AttributeError, match="nope"):
        _ = epfast.nope


@pytest.mark.full
def test_missing_scikit_learn(run_python):
    result = run_python(
        "import sys\n"
        "sys.modules['sklearn'] = None\n"
        "import epfast\n"
        "from epfast import *\n"
        "fit_linear([[1.0], [-1.0]], [1, -1], batch_size=1)\n"
        "assert not hasattr(epfast, 'LinearClassifier')\n"
        "assert getattr(epfast, 'GPClassifier', None) is None\n"
        "assert 'LinearClassifier' not in epfast.__all__\n"
        "try:\n"
        "    epfast.LinearClassifier\n"
        "except AttributeError as error:\n"
        "    print('attribute:', error)\n"
        "try:\n"
        "    from epfast import LinearClassifier\n"
        "except ImportError as error:\n"
        "    print('import:', error)\n"
    )
    told = result.stdout.splitlines()
    assert [line.split(":")[0] for line in told] == ["attribute", "import"]
    assert all("pip install 'epfast[sklearn]'" in line for line in told)
