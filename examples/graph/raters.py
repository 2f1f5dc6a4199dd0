"""Raters who err
==============

Five people look at 100 items and say which of three classes each belongs to. Nobody knows the true
classes, nor how reliable the people are. Dawid and Skene (1979) learn both at once: a person who
mostly agrees with what the others make of an item is believed. Here the data are simulated, so that
the truth is known: the first two people are careful, the last one guesses.
"""

import matplotlib.pyplot as plt
import numpy as np

import epfast
from epfast.graph import Category, Table

rng = np.random.default_rng(3)
n, R, K = 100, 5, 3
truth = rng.choice(K, size=n, p=[0.5, 0.3, 0.2])
care = np.array([0.85, 0.8, 0.65, 0.5, 0.0])
guess = rng.random((n, R)) > care
said = np.where(guess, rng.integers(K, size=(n, R)), truth[:, None])

# %%
# Each person has a confusion matrix. Row k has the probabilities of what they say of an item of
# class k, a Dirichlet variable for each row. Answers alone only say that items come in three kinds.
# That kind 0 is what people call 0 is said by the prior, which favours the diagonal: 3 against 1.

g = epfast.Graph()
share = g.dirichlet(K)
confusion = g.dirichlet(K, concentration=1.0 + 2.0 * np.eye(K), shape=(R, K))
label = g.categorical(n, n=K)
g.add(Category(share), label)
g.add(Table(confusion), label[:, None], said)
post = g.fit()
print(f"settled: {post.converged}, {post.n_sweeps} sweeps, log evidence {post.log_evidence:.2f}")

# %%
# The exact posterior is that of Gibbs sampling: labels given matrices, then matrices given labels.


def gibbs(draws, rng):
    """Sums over draws: probabilities of labels, and moments of the confusion matrices."""
    z, shown = np.array([np.bincount(row).argmax() for row in said]), np.eye(K)[said]
    labels, first, second = np.zeros((n, K)), np.zeros((R, K, K)), np.zeros((R, K, K))
    for step in range(-500, draws):
        one = np.eye(K)[z]
        counts = np.einsum("ik,irj->rkj", one, shown)
        rows = rng.standard_gamma(1.0 + 2.0 * np.eye(K) + counts)
        rows /= rows.sum(axis=2, keepdims=True)
        p = rng.dirichlet(1.0 + one.sum(axis=0))
        p = p * np.exp(np.einsum("irj,rkj->ik", shown, np.log(rows)))
        ends = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1)[:, :-1]
        z = (rng.random((n, 1)) > ends).sum(axis=1)
        if step >= 0:
            labels, first, second = labels + np.eye(K)[z], first + rows, second + rows**2
    mean = first / draws
    return labels / draws, mean, np.sqrt(second / draws - mean**2)


exact_label, exact, exact_sd = gibbs(10_000, np.random.default_rng(0))
off = np.abs(post[confusion].mean - exact) / exact_sd
ratio = post[confusion].sd / exact_sd
p = post[label].probabilities
vote = np.array([np.bincount(row, minlength=K).argmax() for row in said])
print(f"EP: confusion matrices within {off.max():.1f} sd of the exact ones, mean {off.mean():.2f}")
print(f"sds {ratio.min():.2f} to {ratio.max():.2f} of the exact ones")
print(f"probabilities of classes within {np.abs(p - exact_label).max():.2f} of the exact ones")
for name, labels in ("EP", p.argmax(axis=1)), ("exact", exact_label.argmax(axis=1)), ("vote", vote):
    print(f"{name}: {np.mean(labels == truth):.0%} of the items right")

# %%
# Left: how often each person is right, averaged over the classes, beside what was simulated. Right:
# the probability of the most probable class of each item.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
diagonal = post[confusion].mean.diagonal(axis1=1, axis2=2).mean(axis=1)
spread = np.sqrt((post[confusion].variance.diagonal(axis1=1, axis2=2) / K**2).sum(axis=1))
simulated = care + (1 - care) / K
left.errorbar(np.arange(R) - 0.1, diagonal, 1.96 * spread, fmt="o", label="EP, with 95 % intervals")
left.plot(np.arange(R) + 0.1, exact.diagonal(axis1=1, axis2=2).mean(axis=1), "s", label="exact")
left.plot(np.arange(R), simulated, "_", color="black", markersize=26, label="simulated")
left.set(xlabel="person", ylabel="probability of the right answer", ylim=(0, 1), xticks=range(R))
left.set_xticklabels(range(1, R + 1))
left.set_title("How reliable people are")
left.legend(loc="lower left")
certain = p.max(axis=1)
order = np.argsort(certain)
good = (p.argmax(axis=1) == truth)[order]
place = np.arange(n)
right.plot(place[good], certain[order][good], "o", markersize=4, label="right")
right.plot(place[~good], certain[order][~good], "X", markersize=7, label="wrong")
right.set(xlabel="items, by certainty", ylabel="probability of the class", ylim=(0.3, 1.02))
right.set_title("Classes of 100 items")
right.legend(loc="lower right")

# %%
# What can go wrong
# -----------------
# If the rows of the matrices had equal priors, nothing would tell the classes apart: a permutation
# of them is equally probable, and EP stays where all items are alike. The fit warns of it. With few
# answers per item, or with people who are hardly better than chance, the exact posterior has more
# than one mode, and EP finds one of them.
