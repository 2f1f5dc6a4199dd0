"""What a worker does: pure, idempotent, and no harm where it fails."""

import pickle

import numpy as np

from epfast import EP, families, fit_linear
from epfast.gaussian import shards
from epfast.gaussian.shards import local_update, shard_of, site_of
from tests.oracles.data import classes
from tests.oracles.full_fits import TIGHT

N, D = 120, 4
X, Y = classes(N, D, seed=1)
HALF = slice(0, 50)
INNER = EP(30, 1e-12, order="sequential").filled(power=1.0, damping=1.0)


def given():
    """A shard, and the posterior of all rows with its sites."""
    post = fit_linear(X, Y, schedule=EP(**TIGHT))
    shard = shard_of(post.problem, HALF, INNER)
    rows = families.select(post.sites, HALF)
    return shard, post.precision, post.shift, site_of(shard, rows), rows


def test_a_fixed_point_stays():
    shard, precision, shift, site, rows = given()
    found = local_update(shard, precision, shift, site, rows, 1.0)
    for a, b in zip((*found.site, *found.rows), (*site, *rows), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    assert found.refused == 0


def test_without_sites_of_the_rows_it_finds_them_again():
    *whole, rows = given()
    found = local_update(*whole, None, 1.0)
    np.testing.assert_allclose(found.rows.precision, rows.precision, atol=1e-8)


def test_it_is_fitted_beside_the_cavity():
    """A fit of the shard's rows with the cavity as the prior."""
    shard, precision, shift, site, _ = given()
    found = local_update(shard, 2.0 * precision, shift, site, None, 1.0)
    cavity = 2.0 * precision - site.precision
    mean = np.linalg.solve(cavity, shift - site.shift)
    alone = fit_linear(
        X[HALF], Y[HALF], prior_precision=cavity, prior_mean=mean, schedule=EP(**TIGHT)
    )
    np.testing.assert_allclose(found.site.precision, alone.precision - cavity, rtol=1e-8)


def test_it_is_pure():
    args = given()
    kept = pickle.loads(pickle.dumps(args))
    one, two = local_update(*args, 0.7), local_update(*kept, 0.7)
    again = local_update(*args, 0.7)
    for other in (two, again):
        same((*one.site, *one.rows), (*other.site, *other.rows))
    same((*args[1:3], *args[3], *args[4]), (*kept[1:3], *kept[3], *kept[4]))


def same(some, others):
    for a, b in zip(some, others, strict=True):
        np.testing.assert_array_equal(a, b)


def test_damping_is_of_the_rows():
    *whole, _ = given()
    full, half = (local_update(*whole, None, damping) for damping in (1.0, 0.5))
    np.testing.assert_allclose(half.rows.shift, 0.5 * full.rows.shift)
    np.testing.assert_allclose(half.site.precision, 0.5 * full.site.precision)


def test_an_improper_cavity_keeps_the_site():
    shard, _, shift, site, rows = given()
    found = local_update(shard, 0.5 * site.precision, shift, site, rows, 1.0)
    assert found.refused == 50
    assert found.site is site
    assert found.rows is rows


def test_what_is_not_finite_is_no_answer(monkeypatch):
    shard, precision, shift, site, rows = given()

    def overflows(*args):
        fit = run(*args)
        return fit._replace(state=fit.state._replace(precision=np.full((D, D), np.inf)))

    run = shards.run
    monkeypatch.setattr(shards, "run", overflows)
    found = local_update(shard, precision, shift, site, rows, 0.5)
    assert found.refused == 50
    assert found.site is site
