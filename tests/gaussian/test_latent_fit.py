"""What a fit of several classes makes of arguments that are None."""

import numpy as np
import pytest

import epfast
from epfast import losses
from epfast.gaussian import JointPosterior, LatentPosterior


def data(n=60, d=3, count=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    h = X @ rng.normal(size=(d, count)) + rng.normal(size=(n, count))
    return X, h.argmax(axis=1)


def test_classes_and_correlations_are_found():
    X, y = data()
    for loss in ("multiclass", losses.Multiclass(), losses.Multiclass(3)):
        post = epfast.fit_linear(X, y, loss=loss, intercept=True)
        assert post.loss == losses.Multiclass(3, correlated=True)
        assert isinstance(post, JointPosterior)
        assert post.check().verdict == "good"
    K = X @ X.T + 1.0
    assert epfast.fit_gp(K, y, loss="multiclass").loss == losses.Multiclass(3, correlated=False)


@pytest.mark.parametrize(
    "schedule",
    [epfast.EP(order="sequential"), epfast.EP(order="chunked"), epfast.EP(order="shuffled")],
)
def test_orders_of_the_product(schedule):
    post = epfast.fit_linear(*data(), loss="multiclass", schedule=schedule)
    assert post.loss == losses.Multiclass(3, correlated=False)


def test_many_weights_or_classes_have_a_product():
    X, y = data(n=40, d=334)
    schedule = epfast.EP(1)
    with pytest.warns(epfast.ConvergenceWarning):
        post = epfast.fit_linear(X, y, loss="multiclass", schedule=schedule)
    assert type(post) is LatentPosterior
    X, _ = data(n=62, d=2)
    with pytest.warns(epfast.ConvergenceWarning):
        post = epfast.fit_linear(X, np.arange(62) // 2, loss="multiclass", schedule=schedule)
    assert post.loss == losses.Multiclass(31, correlated=False)


def test_a_start_says_what_the_loss_does_not():
    X, y = data()
    for together in (True, False):
        first = epfast.fit_linear(X, y, loss=losses.Multiclass(4, correlated=together))
        again = epfast.fit_linear(X, y, loss="multiclass", start=first)
        assert again.loss == first.loss
        assert again.n_sweeps <= first.n_sweeps + 2


def test_files_of_a_named_loss(tmp_path):
    X, y = data()
    post = epfast.fit_linear(X, y, loss="multiclass")
    post.save(tmp_path / "post.npz")
    assert epfast.load(tmp_path / "post.npz", loss="multiclass").loss == post.loss


@pytest.mark.parametrize("y", [np.zeros(60), np.full(60, 0.5), np.full(60, -1), np.full(60, 1e5)])
def test_what_is_no_class(y):
    with pytest.raises(ValueError, match=r"n_classes is None; allowed: classes 0, 1"):
        epfast.fit_linear(data()[0], y, loss="multiclass")


def test_without_data_the_number_is_needed():
    with pytest.raises(ValueError, match="n_classes is None"):
        losses.Multiclass().responses("y", [0, 1], 2)
    lZ = epfast.backend.tilted_moments("multiclass", [1], [[0.0, 0.5, 0.1]], [[1.0, 1.0, 1.0]])[0]
    want = epfast.backend.tilted_moments(
        losses.Multiclass(3), [1], [[0.0, 0.5, 0.1]], [[1.0, 1.0, 1.0]]
    )[0]
    assert lZ == want


@pytest.mark.parametrize("correlated", [True, False])
def test_rows_are_removed(correlated):
    X, y = data()
    loss = losses.Multiclass(correlated=correlated)
    post = epfast.fit_linear(X, y, loss=loss, schedule=epfast.EP(tol=1e-9, sweeps=300))
    rest = post.remove([0, 7])
    # what is left is that of its rows, given the sites
    np.testing.assert_allclose(rest.sites.shift, np.delete(post.sites.shift, [0, 7], axis=0))
    again = epfast.fit_linear(
        np.delete(X, [0, 7], axis=0), np.delete(y, [0, 7]), loss=loss, start=rest
    )
    cold = epfast.fit_linear(np.delete(X, [0, 7], axis=0), np.delete(y, [0, 7]), loss=loss)
    np.testing.assert_allclose(again.mean, cold.mean, atol=1e-4)
    one = post.remove(3)
    want = post.loo_log_predictive()[3]
    # with one Gaussian, probabilities of new rows are scaled to add up to 1
    found = one.log_predictive(X[3:4], y[3:4])[0]
    assert found == pytest.approx(want, abs=5e-3 if correlated else 1e-8)
    with pytest.raises(ValueError, match="rows"):
        post.remove(60)
    with pytest.raises(ValueError, match="no partial_fit; allowed with it"):
        post.partial_fit(X, y)


@pytest.mark.parametrize(
    "loss", [losses.Multiclass(), losses.Multiclass(correlated=False), losses.Heteroscedastic()]
)
def test_whole_weights_are_copies_of_rows(loss):
    rng = np.random.default_rng(5)
    X, weights = rng.normal(size=(40, 2)), rng.integers(0, 4, 40)
    y = X[:, 0] + 0.3 * rng.normal(size=40)
    if isinstance(loss, losses.Multiclass):
        y = np.digitize(y, [-0.5, 0.5])
    shift = 0.1 * rng.normal(size=(40, loss.latents or 3))
    rows = np.repeat(np.arange(40), weights)
    one = epfast.fit_linear(X, y, loss=loss, weights=weights, offset=shift)
    other = epfast.fit_linear(X[rows], y[rows], loss=loss, offset=shift[rows])
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)
    assert one.log_evidence == pytest.approx(other.log_evidence)
    plain = epfast.fit_linear(X, y, loss=loss, weights=np.ones(40))
    np.testing.assert_array_equal(plain.mean, epfast.fit_linear(X, y, loss=loss).mean)
    for bad, said in ((0.5, "weights holds 0.5.*whole numbers"), (1e6, "100 on average")):
        with pytest.raises(ValueError, match=said):
            epfast.fit_linear(X, y, loss=loss, weights=np.full(40, bad))
