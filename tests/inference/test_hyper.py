"""The walk over hyper-parameters, on densities that are known: it needs no fit to be tested."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize

from epfast.inference.hyper import HyperPoint, Target, Unknown, climbed


class Known(Target):
    """A log density with its slopes, of which rough fits have an error."""

    def __init__(self, value, start, metric=None, error=0.0, lost=None, **given):
        self.value, self.error_of_fits, self.given_metric = value, error, metric
        self.lost = (lambda u: False) if lost is None else lost
        self.unknowns = [Unknown(f"x{k}", None) for k in range(len(start))]
        self.starts = [np.asarray(start, dtype=np.float64)]
        self.bounds = self.ends = np.tile([-9.0, 9.0], (len(start), 1))
        self.rng = np.random.default_rng(0)
        for name, one in given.items():
            setattr(self, name, one)

    def valid_fit(self, u, tol, start):
        if self.lost(u):
            return None
        off = self.error_of_fits * tol * self.rng.uniform(-1.0, 1.0, len(u))
        return SimpleNamespace(log_evidence=self.value(u), off=off)

    def rounding(self, post):
        return 0.0

    def slopes(self, point):
        slopes = optimize.approx_fprime(point.u, self.value, 1e-7)
        return slopes + point.fit.off

    def metric(self, point):
        return super().metric(point) if self.given_metric is None else self.given_metric


def bell(u):
    """Its log is nearly flat far away, and convex there in a direction."""
    return float(-np.log1p(0.5 * u @ u) - 0.01 * u @ u)


def valley(u):
    """Rosenbrock's function."""
    return float(-((1.0 - u[0]) ** 2) - 20.0 * (u[1] - u[0] ** 2) ** 2)


@pytest.mark.parametrize(
    ("value", "start", "mode"),
    [(bell, [4.0, -3.0], [0.0, 0.0]), (valley, [-1.2, 1.0], [1.0, 1.0])],
)
def test_it_ends_at_the_maximum(value, start, mode):
    end = climbed(Known(value, start), np.array(start))
    np.testing.assert_allclose(end.point.u, mode, atol=1e-3)
    assert end.promised <= 1e-6


def test_a_metric_with_a_negative_curvature_does_not_stop_it():
    """BFGS would keep it negative: steps then led to and fro across the valley."""
    metric = np.array([[-3.0, 0.5], [0.5, 40.0]])
    target = Known(valley, [-1.2, 1.0], metric)
    end = climbed(target, target.starts[0])
    np.testing.assert_allclose(end.point.u, [1.0, 1.0], atol=1e-3)
    assert (np.linalg.eigvalsh(end.metric) > 0.0).all()
    assert target.n_fits < 80


def test_rough_slopes_are_made_finer_before_a_small_step():
    """Slopes that are off by 30 times the tolerance: the end is as near as exact ones allow."""

    def value(u):
        return float(-150.0 * (u[0] - 0.7) ** 2)

    target = Known(value, [0.5], np.array([[300.0]]), error=300.0)
    end = climbed(target, target.starts[0])
    assert abs(end.point.u[0] - 0.7) < 1e-5
    assert target.n_fits < 12


def test_no_point_is_lower_than_the_start_and_lost_points_are_few():
    """Along the edge of what has a fit there is little to gain, and a search ends."""
    target = Known(lambda u: float(u[0]), [0.0], lost=lambda u: u[0] > 1.0 / 3.0)
    end = climbed(target, target.starts[0])
    assert 0.0 <= end.point.u[0] <= 1.0 / 3.0
    assert target.n_fits < 80
    assert climbed(Known(lambda u: 0.0, [0.0], lost=lambda u: True), np.zeros(1)) is None


def test_newton_where_the_metric_is_that_of_second_derivatives():
    """Of a quadratic function one step is enough."""
    curvature = np.array([[5.0, 2.0], [2.0, 3.0]])
    given = {"metric": curvature, "knows_curvature": True}
    target = Known(lambda u: float(-0.5 * u @ curvature @ u), [0.4, -0.3], **given)
    end = climbed(target, target.starts[0])
    np.testing.assert_allclose(end.point.u, 0.0, atol=1e-5)
    assert target.n_fits <= 4


def test_a_density_that_rises_to_the_end_of_its_range():
    target = Known(lambda u: float(u[0] - 0.1 * u[1] ** 2), [0.0, 2.0])
    end = climbed(target, target.starts[0])
    np.testing.assert_allclose(end.point.u, [9.0, 0.0], atol=1e-3)


def test_of_several_starts_the_highest_end_is_first():
    """Two modes, of which the start nearest to the lower one finds that alone."""

    def value(u):
        return float(np.logaddexp(-2.0 * (u[0] + 3.0) ** 2, 1.0 - 2.0 * (u[0] - 3.0) ** 2))

    target = Known(value, [-2.5])
    target.starts.append(np.array([2.0]))
    modes = target.modes()
    assert [round(float(one.u[0])) for one in modes] == [3, -3]
    assert all(isinstance(one, HyperPoint) for one in modes)
