"""Random models of one or two weights with losses of every name, and their exact posteriors.

The posteriors are integrals over cells that are split where the mass is, in units of the prior.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np

import epfast
from epfast import losses
from tests import batteries

NODES, WEIGHTS = np.polynomial.legendre.leggauss(3)
#: half the side of the first box, in prior sds; cells of a side of it; splits at most
BOX, CELLS, SPLITS = 10.0, {1: 600, 2: 28}, 14
#: share of the mass by which a cell may differ from the sum of its parts
CLOSE = {1: 1e-6, 2: 2e-5}
#: losses of counts, whose peaks are at their logs; losses that are drawn more often
COUNTS = ("poisson", "negative_binomial")
SEVERAL_MODES = ("contaminated", "student_t", "quasi01", "noisy_step")


class Exact(NamedTuple):
    """An exact posterior."""

    log_evidence: float
    mean: np.ndarray
    sd: np.ndarray


def integrated(log_joint, d, seeds=(), cells=None):
    """The integral of exp(log_joint) over R^d, and mean and sd under it, d of 1 or 2.

    ``log_joint`` takes points (k, d) in units in which the prior is N(0, 1), and gives (k,). Cells
    are split until the sum of their parts is theirs; those that hold seeds (k, d) are split to a
    width of 1e-3 first, so that no narrow peak there is missed.
    """
    cells = cells or CELLS[d]
    line = np.stack(np.meshgrid(*d * [NODES], indexing="ij"), axis=-1).reshape(-1, d)
    share = np.prod(np.meshgrid(*d * [WEIGHTS], indexing="ij"), axis=0).ravel()
    corners = np.stack(np.meshgrid(*d * [[-0.5, 0.5]], indexing="ij"), axis=-1).reshape(-1, d)

    def masses(center, half):
        """Points of cells (c, q, d), and their log masses, (c, q)."""
        points = center[:, None] + half[:, None] * line
        flat = points.reshape(-1, d)
        found = np.concatenate(
            [log_joint(part) for part in np.array_split(flat, 1 + len(flat) // 20000)]
        )
        return points, found.reshape(points.shape[:2]) + np.log(share) + np.log(half).sum(axis=1)[
            :, None
        ]

    seeds = np.reshape(seeds, (-1, d))
    middle, reach = np.zeros(d), np.full(d, BOX)
    wide = True
    for _ in range(20):  # the box that the mass asks for: wider, then closer
        edges = np.linspace(middle - reach, middle + reach, cells + 1, axis=1)
        sides = 0.5 * (edges[:, 1:] + edges[:, :-1])
        center = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, d)
        half = np.tile(reach / cells, (len(center), 1))
        points, log_mass = masses(center, half)
        near = center[log_mass.max(axis=1) > log_mass.max() - 35.0]
        low, high = near.min(axis=0) - 3.0 * half[0], near.max(axis=0) + 3.0 * half[0]
        if len(seeds):
            at = seeds[log_joint(seeds) > log_mass.max() - np.log(half[0]).sum() - 35.0]
            low, high = np.min([low, *at], axis=0), np.max([high, *at], axis=0)
        wide &= bool((low < middle - reach).any() or (high > middle + reach).any())
        if wide:
            reach = 3.0 * reach
        elif ((high - low) > reach).all():
            break
        else:
            middle, reach = 0.5 * (low + high), 0.5 * (high - low)
    done = []
    for level in range(SPLITS):
        top = max([log_mass.max(), *(part[1].max(initial=-np.inf) for part in done)])
        total = np.exp(log_mass - top).sum() + sum(np.exp(part[1] - top).sum() for part in done)
        holds = np.zeros(len(half), dtype=bool)
        for seed in seeds:
            holds |= (np.abs(seed - center) <= half).all(axis=1) & (half > 1e-3).any(axis=1)
        split = holds | (log_mass.max(axis=1) > top + np.log(total) - 16.0)
        done.append((points[~split], log_mass[~split]))
        if not split.any():
            break
        parts = (center[split, None] + corners * half[split, None]).reshape(-1, d)
        halves, before = np.repeat(0.5 * half[split], 2**d, axis=0), log_mass[split]
        points, log_mass = masses(parts, halves)
        new = np.exp(log_mass - top).sum(axis=1).reshape(-1, 2**d).sum(axis=1)
        settled = (np.abs(new - np.exp(before - top).sum(axis=1)) <= CLOSE[d] * total) & (level > 0)
        keep = np.repeat((settled & ~holds[split]) | (level == SPLITS - 1), 2**d)
        done.append((points[keep], log_mass[keep]))
        points, log_mass, center, half = points[~keep], log_mass[~keep], parts[~keep], halves[~keep]
        if not len(half):
            break
    points = np.concatenate([part[0].reshape(-1, d) for part in done])
    log_mass = np.concatenate([part[1].ravel() for part in done])
    top = log_mass.max()
    mass = np.exp(log_mass - top)
    mean = mass @ points / mass.sum()
    away = points - mean
    return top + np.log(mass.sum()), mean, (away.T * mass) @ away / mass.sum()


class Model(NamedTuple):
    """A model, as it is fitted."""

    number: int
    name: str
    loss: object
    #: "full", "factorized" or "process"
    kind: str
    X: np.ndarray
    y: np.ndarray
    #: (d, d), root root' is the prior covariance
    root: np.ndarray

    def __str__(self):
        return f"{self.number}-{self.name}-{self.kind}"

    def fit(self):
        """The fit of the model by its default schedule."""
        if self.kind == "process":
            return epfast.fit_gp(self.root @ self.root.T, self.y, loss=self.loss)
        variance = np.diag(self.root) ** 2
        return epfast.fit_linear(
            self.X, self.y, loss=self.loss, posterior=self.kind, prior_variance=variance
        )

    def exact(self, cells=None):
        """Its exact posterior, an :class:`Exact`, by :func:`integrated`."""
        n, d = self.X.shape
        loss, A = self.loss, self.X @ self.root
        rows = loss.responses("y", self.y, n)
        constant = -0.5 * d * np.log(2.0 * np.pi)

        def log_joint(z):
            h = np.ascontiguousarray(A @ z.T)
            return constant - 0.5 * (z**2).sum(axis=1) - loss.values(h, rows).sum(axis=0)

        seeds = []
        if not loss.by_margin:
            at = (
                rows[:, 1]
                if loss.by_residual
                else np.asarray(self.y, dtype=float).reshape(n, -1)[:, 0]
            )
            if self.name in COUNTS:
                at = np.log(np.maximum(at, 0.1))
            for some in list(combinations(range(n), d))[:60]:
                matrix = A[list(some)]
                if np.isfinite(at[list(some)]).all() and abs(np.linalg.det(matrix)) > 1e-9:
                    seeds.append(np.linalg.solve(matrix, at[list(some)]))
        log_z, mean, covariance = integrated(log_joint, d, seeds, cells)
        root = self.root
        return Exact(log_z, root @ mean, np.sqrt(np.diag(root @ covariance @ root.T)))


def log_uniform(rng, low, high):
    """A number whose log is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def base_of(rng):
    """A base of :class:`epfast.losses.Contaminated`, and the log density beside it."""
    kind = rng.choice(["gaussian", "probit", "logistic", "poisson", "laplace_noise", "student_t"])
    density = float(rng.uniform(-6.0, -0.5))
    if kind in ("probit", "logistic"):
        return losses.NAMED[kind](), None
    if kind == "poisson":
        return losses.Poisson(), "zero" if rng.random() < 0.5 else density
    return drawn_loss(kind, rng, tempers=False), density


def drawn_loss(name, rng, tempers=True):
    """A loss of this name with random parameters."""
    scale = log_uniform(rng, 0.05, 3.0)
    given = {
        "quasi01": lambda: {"epsilon": log_uniform(rng, 0.01, 1.0)},
        "noisy_step": lambda: {"epsilon": log_uniform(rng, 1e-3, 0.45)},
        "negative_binomial": lambda: {"size": log_uniform(rng, 0.3, 30.0)},
        "gaussian": lambda: {"variance": scale**2},
        "student_t": lambda: {"df": log_uniform(rng, 0.5, 30.0), "scale": scale},
        "laplace_noise": lambda: {"scale": scale},
        "quantile": lambda: {"q": float(rng.uniform(0.05, 0.95)), "scale": scale},
        "censored": lambda: {"lower": -1.0, "upper": 1.5, "variance": scale**2},
        "interval": lambda: {"variance": scale**2},
        "ordinal": lambda: {"cuts": tuple(np.cumsum(rng.uniform(0.1, 2.0, 2)) - 1.5)},
        "gamma_noise": lambda: {"shape": log_uniform(rng, 0.3, 20.0)},
        "weibull": lambda: {"shape": log_uniform(rng, 0.5, 5.0)},
    }.get(name, dict)()
    if name == "contaminated":
        base, density = base_of(rng)
        given = {"base": base, "share": float(rng.uniform(0.02, 0.6)), "log_density": density}
    loss = losses.NAMED[name](**given)
    if tempers and rng.random() < 0.15 and "powers" in loss.gives:
        return loss.tempered(log_uniform(rng, 0.3, 4.0))
    return loss


def drawn_model(number):
    """The model of a number: the same each time."""
    rng = np.random.default_rng([7, number])
    names = list(losses.NAMED)
    name = str(rng.choice(SEVERAL_MODES if rng.random() < 0.4 else names))
    loss = drawn_loss(name, rng)
    kind = str(rng.choice(["full", "full", "full", "factorized", "process"]))
    d = int(rng.integers(1, 3))
    n = d if kind == "process" else round(log_uniform(rng, 1.0, 30.4))
    X = np.eye(d) if kind == "process" else rng.normal(size=(n, d)) * log_uniform(rng, 0.3, 3.0)
    if kind != "process" and rng.random() < 0.3:
        X[:, 0] = 1.0
    sd = np.sqrt(log_uniform(rng, 0.05, 100.0))
    root = np.diag(sd * np.ones(d))
    if kind == "process" and d == 2:
        root = sd * np.linalg.cholesky(np.array([[1.0, c := rng.uniform(-0.5, 0.99)], [c, 1.0]]))
    theta = rng.normal(size=(2, d)) * min(sd, 2.0)
    which = (rng.random(n) < rng.choice([0.0, 0.2, 0.5])).astype(int)
    h = (X * theta[which]).sum(axis=1)
    if getattr(loss, "base", None) is not None or name == "student_t":
        away = rng.random(n) < 0.15
        h = np.where(away, h + 6.0 * rng.normal(size=n), h)
    h = np.clip(h, -30.0, 30.0)
    if name == "censored":
        y = np.clip(h + 0.3 * rng.normal(size=n), -1.0, 1.5)
    else:
        y = batteries.responses_of(loss, h, rng)
    return Model(number, name, loss, kind, X, y, root)
