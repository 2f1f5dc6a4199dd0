"""Files that no posterior was saved to, or that were damaged: load says so and which file."""

from epfast import EP, fit_linear, load
from tests.oracles.bad_values import (
    X,
    Y,
    check_error,
    every_bad_value,
)


def fit(**arguments):
    given = {"posterior": "factorized", "batch_size": 10, "schedule": EP(sweeps=2, tol=0.0)}
    return fit_linear(X, Y, **(given | arguments))


POST = fit()
BAD_PATH = [None, 5, 2**40, True, 1.5, [1]]


@every_bad_value([("path", [load], BAD_PATH)])
def test_error_names_the_argument(name, call, value):
    check_error(name, call, value)
