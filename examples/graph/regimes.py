"""A learned hidden chain
======================

A machine is in one of two states, quiet or busy, and changes rarely. Each minute it makes a number,
0, 1 or 2 calls. When was it busy? Unknown are the states, how often they change, and how many
calls each state makes: a hidden Markov model whose tables are learned. The data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np

import epfast
from epfast.graph import Table

rng = np.random.default_rng(2)
n, K, M = 300, 2, 3
stay, emit = np.array([[0.97, 0.03], [0.05, 0.95]]), np.array([[0.7, 0.25, 0.05], [0.2, 0.3, 0.5]])
state = np.zeros(n, dtype=int)
for t in range(1, n):
    state[t] = rng.random() < stay[state[t - 1], 1]
calls = (rng.random(n)[:, None] > np.cumsum(emit[state], axis=1)[:, :-1]).sum(axis=1)

# %%
# Rows of both tables are Dirichlet variables. The prior of the first one says that states last,
# that of the second one which state is the quiet one: it makes 0 calls more often, the other one 2.

of_steps = np.array([[9.0, 1.0], [1.0, 9.0]])
of_calls = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
g = epfast.Graph()
step, shown = g.dirichlet(K, of_steps), g.dirichlet(M, of_calls)
busy = g.categorical(n, n=K)
g.add(Table([0.5, 0.5]), busy[0])
g.add(Table(step), busy[:-1], busy[1:])
g.add(Table(shown), busy, calls)
post = g.fit()
print(f"settled: {post.converged}, {post.n_sweeps} sweeps, log evidence {post.log_evidence:.2f}")

# %%
# The exact posterior is that of Gibbs sampling: all states at once, backward through the filter,
# then the tables given the states.


def gibbs(draws, rng):
    """Probabilities of busy, and moments of the rows of both tables side by side."""
    rows = [of_steps, of_calls]
    alone, first, second = np.zeros(n), np.zeros((K, K + M)), np.zeros((K, K + M))
    z, f = np.zeros(n, dtype=int), np.empty((n, K))
    for number in range(-200, draws):
        P, E = (a / a.sum(axis=1, keepdims=True) for a in rows)
        q = np.full(K, 0.5)
        for t in range(n):
            q = (q @ P if t else q) * E[:, calls[t]]
            q = f[t] = q / q.sum()
        u = rng.random(n)
        z[-1] = u[-1] > f[-1, 0]
        for t in range(n - 2, -1, -1):
            back = f[t] * P[:, z[t + 1]]
            z[t] = u[t] * back.sum() > back[0]
        steps, seen = np.zeros((K, K)), np.zeros((K, M))
        np.add.at(steps, (z[:-1], z[1:]), 1.0)
        np.add.at(seen, (z, calls), 1.0)
        rows = [rng.standard_gamma(of_steps + steps), rng.standard_gamma(of_calls + seen)]
        if number >= 0:
            both = np.hstack([a / a.sum(axis=1, keepdims=True) for a in rows])
            alone, first, second = alone + z, first + both, second + both**2
    mean = first / draws
    return alone / draws, mean, np.sqrt(second / draws - mean**2)


exact_busy, exact, exact_sd = gibbs(4000, np.random.default_rng(0))
found = np.hstack([post[step].mean, post[shown].mean])
sd = np.hstack([post[step].sd, post[shown].sd])
off, ratio = np.abs(found - exact) / exact_sd, sd / exact_sd
p = post[busy].probabilities[:, 1]
print(f"EP: rows within {off.max():.1f} sd of the exact ones, mean {off.mean():.2f}")
print(f"sds {ratio.min():.2f} to {ratio.max():.2f} of the exact ones")
print(f"probabilities of busy within {np.abs(p - exact_busy).max():.2f}, ", end="")
print(f"mean {np.abs(p - exact_busy).mean():.3f}")
print(
    f"{np.mean((p > 0.5) == state):.0%} of the minutes right, {np.mean(state == 0):.0%} are quiet"
)

# %%
# Above: the probability that the machine is busy, and the calls as dots. Below: the rows of both
# tables.

figure, (top, below) = plt.subplots(2, 1, figsize=(9, 5.4), height_ratios=[3, 2])
top.fill_between(np.arange(n), 0, 1, where=state == 1, step="mid", alpha=0.15, linewidth=0,
                 color="C1", label="busy")  # fmt: skip
top.plot(exact_busy, color="black", linewidth=2.5, alpha=0.35, label="exact")
top.plot(p, label="EP")
top.plot(np.arange(n), 1.08 + 0.06 * calls, ".", color="gray", markersize=2.5)
top.text(n + 2, 1.14, "calls", va="center", fontsize=9, color="gray")
top.set(xlabel="minute", ylabel="probability of busy", xlim=(0, n), yticks=[0, 0.5, 1])
top.legend(loc="center left")
place = np.arange(2 * (K + M))
names = [f"{a} → {b}" for a in "qb" for b in ("q", "b", "0", "1", "2")]
below.errorbar(place - 0.12, found.ravel(), 1.96 * sd.ravel(), fmt="o", markersize=4, label="EP")
below.errorbar(place + 0.12, exact.ravel(), 1.96 * exact_sd.ravel(), fmt="s", markersize=4,
               color="black", alpha=0.5, label="exact")  # fmt: skip
truth = np.hstack([stay, emit]).ravel()
below.plot(place, truth, "_", color="C1", markersize=22, label="simulated")
below.set(ylabel="probability", ylim=(0, 1.05), xticks=place)
below.set_xticklabels(names)
below.set_title("From quiet (q) and busy (b) to the next state, and to the number of calls")
below.legend(loc="upper center")

# %%
# What can go wrong
# -----------------
# A chain whose tables are learned has loops. Here sds of the rows are off by up to 40 %. With
# states that are hard to tell apart EP is too sure: sds may be a third of the exact ones. Names of
# states come from the priors alone: with equal priors of the two rows of the second table, EP could
# not tell the states apart, and stays where all rows are alike.
