"""A sparse factor, its solves and the entries of its inverse, beside dense algebra."""

import numpy as np
import pytest
from scipy import sparse

from epfast._core.sparse import SparseFactor, SparseRows, elimination_tree, factor_pattern

RNG = np.random.default_rng(0)


def problem(d, density, lead):
    """A matrix, its pattern with so many leading columns, and its numbers."""
    A = sparse.random_array((d, d), density=density, rng=RNG, format="csc")
    P = sparse.csc_array(A @ A.T + sparse.diags_array(1.0 + RNG.random(d)))
    upper = sparse.csc_array(sparse.triu(P))
    upper.sort_indices()
    start, row = upper.indptr.astype(np.intp), upper.indices.astype(np.intc)
    parents, counts = elimination_tree(start, row)
    factor = SparseFactor(*factor_pattern(start, row, parents, counts, lead), d)
    x, whole = np.zeros(factor.size), upper.tocoo()
    places = factor.places(whole.row.astype(np.intp), whole.col.astype(np.intp))
    x[places] = whole.data
    return P.toarray(), factor, x, counts


@pytest.mark.parametrize(
    ("d", "density", "lead"),
    [(1, 1.0, 0), (1, 1.0, 1), (6, 0.5, 3), (40, 0.1, 40), (40, 0.1, 0), (90, 0.03, 60)],
)
def test_beside_dense_algebra(d, density, lead):
    P, factor, x, counts = problem(d, density, lead)
    L = np.linalg.cholesky(P)
    filled = (np.abs(L) > 1e-14).sum(axis=0) - 1
    assert (counts >= filled).all()
    assert factor.factor(x)
    assert factor.log_determinant(x) == pytest.approx(np.linalg.slogdet(P)[1], abs=1e-10)
    pivots = L.diagonal() ** 2
    assert factor.least_pivot(x) == pytest.approx(pivots.min())
    B = RNG.normal(size=(d, 3))
    solved, half, back = B.copy(), B.copy(), np.eye(d)
    factor.solve(x, solved)
    factor.solve(x, half, "half")
    factor.solve(x, back, "back")
    np.testing.assert_allclose(solved, np.linalg.solve(P, B), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(half.T @ half, B.T @ np.linalg.solve(P, B), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(back @ back.T, np.linalg.inv(P), rtol=1e-10, atol=1e-12)
    i, j = np.indices((d, d)).reshape(2, -1).astype(np.intp)
    places = factor.places(i, j)
    known = places >= 0
    assert known[i == j].all()
    inverse = factor.inverse(x)[places[known]]
    np.testing.assert_allclose(inverse, np.linalg.inv(P)[i[known], j[known]], atol=1e-12)


def test_rows_beside_dense_algebra():
    P, factor, x, _ = problem(30, 0.08, 20)
    n, c = 50, 3
    R = sparse.random_array((n, 30), density=0.05, rng=RNG, format="csr")
    R.sort_indices()
    rows = SparseRows(R.indptr.astype(np.intp), R.indices.astype(np.intc), R.data, factor)
    met, dense = np.abs(P) > 0.0, R.toarray()
    inside = [met[np.ix_(*2 * (np.flatnonzero(row),))].all() for row in dense]
    assert (~rows.whole <= ~np.array(inside)).all()  # filled entries are in the pattern, too
    kept = np.flatnonzero(rows.whole)
    R, dense = R[kept], dense[kept]
    rows = SparseRows(R.indptr.astype(np.intp), R.indices.astype(np.intc), R.data, factor)
    assert rows.whole.all()
    assert rows.n_pairs == sum(k * (k + 1) // 2 for k in np.diff(R.indptr))
    U, tau, nu = RNG.normal(size=(len(kept), c)), RNG.random(len(kept)), RNG.normal(size=len(kept))
    added, h, B = np.zeros(factor.size), np.zeros(30), np.zeros((30, c))
    rows.add(tau, nu, added, h, U, B)
    np.testing.assert_allclose(h, nu @ dense, atol=1e-13)
    np.testing.assert_allclose(B, dense.T @ (tau[:, None] * U), atol=1e-13)
    i, j = map(np.ascontiguousarray, np.nonzero(np.tril(dense.T @ (tau[:, None] * dense))))
    whole = (dense.T * tau) @ dense
    np.testing.assert_allclose(added[factor.places(i, j)], whole[i, j], atol=1e-13)
    assert factor.factor(x)
    mean, V, root = RNG.normal(size=30), RNG.normal(size=(30, c)), np.triu(RNG.normal(size=(c, c)))
    of_dense, (center, spread) = RNG.normal(size=c), np.empty((2, len(kept) - 4))
    rows.marginals(factor.inverse(x), mean, U, V, root, of_dense, 4, center, spread)
    np.testing.assert_allclose(center, (dense @ mean + U @ of_dense)[4:], atol=1e-13)
    truth = np.einsum("ij,jk,ik->i", dense, np.linalg.inv(P), dense)
    truth += (((U - dense @ V) @ root) ** 2).sum(axis=1)
    np.testing.assert_allclose(spread, truth[4:], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("lead", [0, 15, 30])
def test_what_is_not_definite(lead):
    P, factor, x, _ = problem(30, 0.1, lead)
    places = factor.places(np.arange(30), np.arange(30))
    x[places] -= 2.0 * np.linalg.eigvalsh(P).max()
    assert not factor.factor(x)


def test_arrays_that_do_not_fit():
    """No loop leaves an array."""
    _, factor, x, _ = problem(12, 0.2, 8)
    index = np.arange(3)
    for call in (
        lambda: factor.factor(x[:-1]),
        lambda: factor.inverse(x[:-1]),
        lambda: factor.solve(x, np.ones((11, 2))),
        lambda: factor.places(index, index + 10),
        lambda: factor.places(-index, index),
        lambda: SparseFactor(np.array([0, 2]), np.array([2, 1], np.intc), 3),
        lambda: SparseFactor(np.array([0, 1]), np.array([3], np.intc), 3),
        lambda: SparseFactor(np.array([0, 1]), np.array([0], np.intc), 3),
        lambda: SparseFactor(np.array([0, 2, 1]), np.array([1], np.intc), 3),
        lambda: SparseFactor(np.array([1, 1]), np.array([1], np.intc), 3),
        lambda: elimination_tree(np.array([0, 1]), np.array([1], np.intc)),
        lambda: elimination_tree(np.array([0, 5]), np.array([0], np.intc)),
        lambda: SparseRows(np.array([0, 2]), np.array([1, 1], np.intc), np.ones(2), factor),
        lambda: SparseRows(np.array([0, 1]), np.array([12], np.intc), np.ones(1), factor),
        lambda: SparseRows(np.array([0, 1]), np.array([1], np.intc), np.ones(0), factor),
        lambda: SparseRows(np.array([0, 3]), np.array([1], np.intc), np.ones(1), factor),
    ):
        with pytest.raises(ValueError, match=r"."):
            call()
    rows = SparseRows(np.array([0, 1, 2]), np.array([1, 2], np.intc), np.ones(2), factor)
    one, h, U = np.ones(2), np.ones(12), np.ones((2, 2))
    given = {"z": x, "mean": h, "U": U, "V": np.ones((12, 2)), "root": np.ones((2, 2))}
    given |= {"of_dense": one, "first": 0, "h": one, "s": np.ones(2)}

    def marginals(**other):
        rows.marginals(**given | other)

    marginals()
    for call in (
        lambda: rows.add(one[:1], one, x, h, None, None),
        lambda: rows.add(one, one, x[1:], h, None, None),
        lambda: rows.add(one, one, x, h[1:], None, None),
        lambda: rows.add(one, one, x, h, np.ones((1, 2)), np.ones((12, 2))),
        lambda: rows.add(one, one, x, h, np.ones((2, 2)), np.ones((12, 3))),
        lambda: marginals(first=1),
        lambda: marginals(mean=h[1:]),
        lambda: marginals(h=one[:1]),
        lambda: marginals(U=np.ones((1, 2))),
        lambda: marginals(V=np.ones((12, 3))),
        lambda: marginals(V=np.ones((11, 2))),
        lambda: marginals(root=np.ones((2, 3))),
        lambda: marginals(of_dense=np.ones(1)),
        lambda: marginals(z=x[1:]),
    ):
        with pytest.raises(ValueError, match=r"."):
            call()


def test_a_tree_of_too_many_entries():
    start = np.array([0, 1, 3, 5, 7, 9])
    row = np.array([0, 0, 1, 0, 2, 0, 3, 0, 4], np.intc)  # the first column meets all others
    parents, counts = elimination_tree(start, row)
    assert parents.tolist() == [1, 2, 3, 4, -1]
    assert counts.tolist() == [4, 3, 2, 1, 0]
    assert elimination_tree(start, row, 9) is None
    assert elimination_tree(start, row, 10) is not None
