"""One pass over a stream
======================

Assumed density filtering (:term:`ADF`) uses each row once and stores only a Gaussian of the
coefficients. The chunks here come from a generator. They could come from a file, a database or a
queue.
"""

import matplotlib.pyplot as plt
import numpy as np

import epfast

rng = np.random.default_rng(0)
weights = rng.normal(size=20)


def chunks(n, rows):
    """n chunks of labels that follow a logistic model."""
    for _ in range(n):
        X = rng.normal(size=(rows, 20))
        yield X, np.where(X @ weights + rng.logistic(size=rows) > 0, 1, -1)


# %%
# Each chunk is predicted before it is learned, which measures the error on new rows. The line on
# the left is the mean of nine chunks. The log loss hardly falls: that of the true coefficients is
# 0.30. The error of the coefficients, as a root mean square, falls as the posterior sd says.

post, seen, loss, error, said = None, [], [], [], []
for X, y in chunks(60, 100):
    if post is not None:
        p = post.predict_proba(X)
        seen.append(100 * (len(seen) + 1))
        loss.append(-np.log(np.where(y > 0, p, 1.0 - p)).mean())
        error.append(np.sqrt(np.mean((post.mean - weights) ** 2)))
        said.append(np.sqrt(post.variance.mean()))
    post = epfast.fit_linear([(X, y)], schedule=epfast.ADF(), start=post)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
left.plot(seen, loss, ".", color=epfast.plots.GREY, label="next chunk")
smooth = np.convolve(loss, np.ones(9) / 9, "valid")
left.plot(seen[4:-4], smooth, color=epfast.plots.BLUE, label="mean of nine")
left.set(
    xlabel="rows seen", ylabel="log loss", title="Prediction of rows not seen yet", ylim=(0, 0.6)
)
left.legend()
right.loglog(seen, error, color=epfast.plots.ORANGE, label="how far off they are")
right.loglog(seen, said, color=epfast.plots.BLUE, label="posterior sd")
right.set(xlabel="rows seen", title="Coefficients: error, and what the fit says of it")
right.legend()
print(f"after {seen[-1]:,} rows: error {error[-1]:.3f}, posterior sd {said[-1]:.3f}")
plt.show()

# %%
# When not to
# -----------
#
# One pass does not correct the errors of early rows. EP, which revisits rows that fit into memory,
# is closer to the exact posterior. ADF does not forget. If the coefficients drift, old rows must be
# removed, which :meth:`~epfast.FullPosterior.remove` does where rows are kept.
