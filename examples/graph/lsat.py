"""Item response
=============

The data are section 6 of the Law School Admission Test, the answers of 1,000 students to five
questions (Bock and Lieberman 1970). A student of ability θ answers question j, of difficulty αⱼ,
right with probability 1 / (1 + exp(-(θ - αⱼ))). How hard are the questions, how able the students?
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import optimize, special

import epfast

# how many students gave each of the 32 patterns of answers, from 00000, 00001, .. to 11111
counts = np.array(
    [3, 6, 2, 11, 1, 1, 3, 4, 1, 8, 0, 16, 0, 3, 2, 15,
     10, 29, 14, 81, 3, 28, 15, 80, 16, 56, 21, 173, 11, 61, 28, 298]
)  # fmt: skip
patterns = np.array([[int(digit) for digit in f"{k:05b}"] for k in range(32)])
answers = np.repeat(patterns, counts, axis=0)  # (1000, 5)

# %%
# The model has a :term:`factor` for each answer, about one ability and one difficulty. A
# :term:`sweep` visits all 5,000.

g = epfast.Graph()
theta = g.gaussian(1000, variance=0.755**2)
alpha = g.gaussian(5, variance=100.0)
g.add("logistic", theta[:, None] - alpha, np.where(answers == 1, 1, -1))
post = g.fit()
print(f"settled: {post.converged}, {post.n_sweeps} sweeps, log evidence {post.log_evidence:.2f}")

# %%
# For the exact posterior abilities are integrated out by quadrature, and the five difficulties by
# importance sampling.


def log_posterior(a):
    """Of difficulties (n, 5), up to a constant."""
    node, weight = np.polynomial.hermite_e.hermegauss(41)
    right = special.log_expit(0.755 * node - a[..., None])
    each = patterns @ right + (1 - patterns) @ (right - (0.755 * node - a[..., None]))
    total = special.logsumexp(each + np.log(weight / weight.sum()), axis=-1)
    return total @ counts - 0.5 * (a**2).sum(axis=-1) / 100.0


mode = optimize.minimize(lambda a: -log_posterior(a[None])[0], np.zeros(5))
rng = np.random.default_rng(0)
z = rng.standard_normal((4000, 5))
draws = mode.x + 1.1 * z @ np.linalg.cholesky(np.diag(post[alpha].variance)).T
log_w = np.concatenate([log_posterior(part) for part in np.split(draws, 20)])
w = special.softmax(log_w + 0.5 * (z**2).sum(axis=1))
exact = w @ draws
exact_sd = np.sqrt(w @ (draws - exact) ** 2)

# %%
# Left: how likely a right answer to each question is, by ability. Right: one student for each
# number of right answers, in logits, the unit of log odds.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
ability = np.linspace(-4.0, 3.0, 200)
order = np.argsort(post[alpha].mean)
for place, j in enumerate(order):
    mean, sd = post[alpha[j]].mean, post[alpha[j]].sd
    curve = [special.expit(ability - mean - shift * 1.96 * sd) for shift in (-1, 0, 1)]
    (line,) = left.plot(ability, curve[1])
    left.fill_between(ability, curve[2], curve[0], alpha=0.25, linewidth=0, color=line.get_color())
    height = 0.6 if place % 2 else 0.4
    left.annotate(
        f"{j + 1}", (mean + special.logit(height), height), ha="center", va="center",
        color="white", fontsize=9, bbox={"boxstyle": "circle,pad=0.25", "color": line.get_color()},
    )  # fmt: skip
left.set(
    xlabel="ability θ, logits", ylabel="probability of a right answer", xlim=(-4, 3), ylim=(0, 1)
)
left.set_title("Five questions, with 95 % intervals")
score = answers.sum(axis=1)
each = [np.flatnonzero(score == k)[0] for k in range(6)]
known = post[theta[each]]
right.errorbar(
    np.arange(6), known.mean, 1.96 * known.sd, fmt="o", capsize=4, label="student, 95 % interval"
)
right.axhspan(-1.96 * 0.755, 1.96 * 0.755, color="0.92", zorder=0, label="before the answers")
right.set(xlabel="right answers of five", ylabel="ability θ, logits", ylim=(-3, 3))
right.set_title("What five answers say of a student")
right.legend(loc="upper left")

plt.show()

# %%
# What EP gets wrong here
# -----------------------
#
# Little: the standard deviations (sds) of the difficulties are 1 % too small, since difficulties
# are taken as independent of a thousand abilities. Messages from modes and curvatures
# (``scheme="laplace"``) put a difficulty more than an sd off: the likelihood of each answer is
# skewed a little, and a thousand times a little adds up.

g = epfast.Graph()
theta = g.gaussian(1000, variance=0.755**2)
beta = g.gaussian(5, variance=100.0)
g.add("logistic", theta[:, None] - beta, np.where(answers == 1, 1, -1), scheme="laplace")
laplace = g.fit()
for name, belief in (("EP", post[alpha]), ("Laplace messages", laplace[beta])):
    off, ratio = np.abs(belief.mean - exact) / exact_sd, belief.sd / exact_sd
    print(
        f"{name}: difficulties within {off.max():.2f} sd, sds {ratio.min():.3f} to "
        f"{ratio.max():.3f} of the exact ones ({1 / (w @ w):,.0f} effective draws)"
    )
