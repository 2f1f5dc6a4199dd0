"""What is known of a network after a fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.inference import run
from epfast.inference.report import table
from epfast.losses import Gaussian, Loss, Probit
from epfast.parametric.engine import ParametricPosterior
from epfast.parametric.network_problem import NetworkProblem, log_density
from epfast.schedules import ADF


class Weights(NamedTuple):
    """The weights of a layer: independent Gaussians."""

    #: (units, inputs + 1), the bias last
    mean: Array
    variance: Array


@dataclass(eq=False, repr=False)
class NetworkPosterior(ParametricPosterior):
    """Independent Gaussians over the weights of a network, gammas over two precisions.

    The network is z_l = max(0, W_l [z_(l-1); 1] / sqrt(inputs + 1)) with a linear last layer, on
    standardised columns. Rows are not kept.

    Attributes
    ----------
    converged : bool
        Whether a tolerance was met. False with ``tol=0``.
    history : list of SweepInfo
        Of the passes of this fit. ``log_evidence`` is the sum of the rows' log Z in the pass, of
        the standardised response: how well each row was predicted on the way. It is no estimate of
        log p(y), and bounds nothing. ``n_refused`` counts rows of which a weight, or the noise,
        kept its site.
    n_dead_units : int
        Hidden units that the last pass found more than 37 standard deviations below 0 at each row:
        they do nothing, and learn nothing.
    """

    problem: NetworkProblem
    n_dead_units: int = 0

    kind: ClassVar[str] = "network"

    def __repr__(self) -> str:
        sizes = "-".join(str(units) for units in (len(self.problem.scaling.mean), *self.hidden, 1))
        return (
            f"NetworkPosterior({sizes}, {self.problem.likelihood}, {self.problem.n_weights} "
            f"weights, {self.n_sweeps} passes, converged={self.converged})"
        )

    # ---- the record ----

    @property
    def loss(self) -> Loss:
        """What makes y of the output: noise of the mean variance, or a probit link."""
        return Probit() if self.problem.probit else Gaussian(variance=self.noise_variance)

    def known_loss(self) -> Loss:
        """The loss, as other posteriors may lack it."""
        return self.loss

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of each hidden layer."""
        return self.problem.hidden

    # ---- the belief ----

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Means and variances of the weights of each layer, of standardised columns."""
        W = self.problem.n_weights
        variance = 1.0 / self.state.belief[:W]
        mean = self.state.belief[W : 2 * W] * variance
        layers, first = [], 0
        for shape in self.problem.shapes:
            part = slice(first, first + shape[0] * shape[1])
            both = (numbers[part].reshape(shape).T.copy() for numbers in (mean, variance))
            layers.append(Weights(*both))
            first = part.stop
        return tuple(layers)

    @property
    def noise_variance(self) -> float:
        """Mean of the noise variance, on the scale of y. 0 for a probit output, which has none."""
        noise = self.problem.noise_of(self.state.belief)
        return 0.0 if noise is None else noise * self.problem.scaling.y_scale**2

    @property
    def prior_variance(self) -> float:
        """Mean of the prior variance of the weights, learned or known."""
        alpha, rate = self.state.belief[-2:]
        return float(rate / alpha)

    # ---- predictions ----

    def predict(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of the network's output at new rows, noise not included.

        Parameters
        ----------
        X : array_like of shape (m, d)

        Returns
        -------
        mean, variance : ndarray of shape (m,)
            On the scale of y. Of a probit output the latent value.
        """
        scaling = self.problem.scaling
        mean, variance = self.problem.latent(self.state.belief, scaling.rows(X))
        mean, variance = scaling.y_mean + scaling.y_scale * mean, scaling.y_scale**2 * variance
        if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
            raise FloatingPointError(
                "the output overflows at X; use rows nearer to those of the fit"
            )
        return mean, variance

    def log_predictive(self, X: Any, y: Any) -> Array:
        """Log density of new responses, log N(y; mean, variance + noise), or of labels.

        Parameters
        ----------
        X : array_like of shape (m, d)
        y : array_like of shape (m,)
            Labels -1 and 1 for a probit output.

        Returns
        -------
        ndarray of shape (m,)
        """
        mean, variance = self.predict(X)
        if self.problem.probit:
            return log_density(_checks.labels("y", y, len(mean)), mean, variance, None)
        responses = _checks.array("y", y, shape=mean.shape)
        return log_density(responses, mean, variance, self.noise_variance)

    def predict_proba(self, X: Any) -> Array:
        """Probability of the label 1, (m,), of a probit output."""
        if not self.problem.probit:
            raise ValueError("the output is Gaussian; allowed for a fit with loss='probit'")
        mean, variance = self.predict(X)
        return np.asarray(special.ndtr(mean / np.sqrt(1.0 + variance)))

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> tuple[Array, ...]:
        """Draw networks.

        Parameters
        ----------
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        tuple of ndarray of shape (size, units, inputs + 1)
            The weights of each layer, as in :attr:`weights`.
        """
        size = _checks.integer("size", size, least=0)
        draws = _checks.generator("rng", rng)
        return tuple(
            mean + np.sqrt(variance) * draws.standard_normal((size, *mean.shape))
            for mean, variance in self.weights
        )

    def sample_y(self, X: Any, size: int, rng: np.random.Generator | int | None = None) -> Array:
        """Draw responses: networks from the posterior, and noise (or labels -1 and 1).

        Parameters
        ----------
        X : array_like of shape (m, d)
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        ndarray of shape (size, m)
            Each row by one network.
        """
        rng = _checks.generator("rng", rng)
        scaling, layers = self.problem.scaling, self.sample(size, rng)
        z = np.broadcast_to(scaling.rows(X).T, (size, len(scaling.mean), len(X)))
        with np.errstate(over="ignore", invalid="ignore"):  # found below
            for k, weights in enumerate(layers):
                inputs = weights.shape[2]
                z = (weights[:, :, :-1] @ z + weights[:, :, -1:]) / np.sqrt(inputs)
                z = np.maximum(z, 0.0) if k + 1 < len(layers) else z
            output = scaling.y_mean + scaling.y_scale * z[:, 0]
        if not np.isfinite(output).all():
            raise ValueError("X holds rows too far off for doubles; allowed: nearer ones")
        noise = rng.standard_normal(output.shape)
        if self.problem.probit:
            return np.where(output + noise > 0.0, 1.0, -1.0)
        return np.asarray(output + np.sqrt(self.noise_variance) * noise)

    # ---- more rows ----

    def partial_fit(self, X: Any, y: Any) -> NetworkPosterior:
        """The posterior with new rows taken in, by one pass of ADF. This one stays as it is.

        After SEP their share of the site follows: the site is what the belief has beyond the prior,
        over all rows so far. Scales stay those of the first fit.

        Parameters
        ----------
        X : array_like of shape (m, d)
        y : array_like of shape (m,)

        Raises
        ------
        ValueError
            After EP and DSEP, whose sites belong to rows: fit all rows with ``start``.
        """
        problem, state = self.problem, self.state
        if state.sites is not None and len(state.sites) > 1:
            raise ValueError(
                f"schedule is {type(self.schedule).__name__}, whose sites belong to rows; allowed "
                "for partial_fit: ADF, SEP or AEP; or fit_network of all rows with start="
            )
        rows, responses = scaled_rows(problem, X, y, 1)
        one = ADF(order="shuffled", seed=problem.seed).filled()
        model = problem.model(rows, responses)
        fit = run(problem._replace(schedule=one).engine(model), one, self)
        n, new = problem.n + len(rows), fit.state
        if state.sites is not None:
            beyond = new.belief - new.base[: len(new.belief)]
            new = new._replace(sites=(beyond / n)[None])
        return NetworkPosterior(problem._replace(n=n), new, False, fit.history, model.n_dead)

    # ---- what it says ----

    def summary(self) -> Any:
        """A table with a row per layer: sizes, weights that are sure of their sign, typical sd.

        Returns
        -------
        pandas.DataFrame, or a table that prints aligned where pandas is missing
            ``attrs`` hold ``converged`` and ``notes``, lines of text.
        """
        columns: dict[str, list[float]] = {
            name: [] for name in ("inputs", "units", "mean |w|", "mean sd", "share |w| > 2 sd")
        }
        for mean, variance in self.weights:
            sd = np.sqrt(variance)
            sure = (np.abs(mean) > 2.0 * sd).mean()
            row = (mean.shape[1] - 1, mean.shape[0], np.abs(mean).mean(), sd.mean(), sure)
            for name, value in zip(columns, row, strict=True):
                columns[name].append(value)
        index = [f"layer {k + 1}" for k in range(len(self.problem.hidden))] + ["output"]
        last = f", last change {self.history[-1].change:.2g}" if self.history else ""
        count = f"{self.n_sweeps} pass{'es' if self.n_sweeps != 1 else ''}"
        notes = [f"{'converged' if self.converged else 'not converged'}: {count}{last}"]
        if not self.problem.probit:
            notes.append(f"noise variance: {self.noise_variance:.4g}")
        notes.append(f"prior variance of the weights: {self.prior_variance:.4g}")
        if self.history and self.history[-1].n_refused:
            refused = self.history[-1].n_refused
            notes.append(f"{refused} rows were refused in part in the last pass")
        if self.n_dead_units:
            notes.append(f"{self.n_dead_units} hidden units are dead")
        return table(index, columns, {"converged": self.converged, "notes": notes})


def scaled_rows(problem: NetworkProblem, X: Any, y: Any, least: int) -> tuple[Array, Array]:
    """Rows and responses for the core, checked: (n, d) and (n,)."""
    rows = problem.scaling.rows(X)
    n = len(rows)
    if n < least:
        raise ValueError(f"X has {n} rows; allowed: {least} or more")
    if problem.probit:
        return rows, _checks.labels("y", y, n)
    scaling = problem.scaling
    given = _checks.array("y", y, shape=(n,))
    with np.errstate(over="ignore"):
        responses = np.ascontiguousarray((given - scaling.y_mean) / scaling.y_scale)
    if not np.isfinite(responses).all():
        raise ValueError(
            f"y reaches {np.abs(given).max():.3g}, too far from those of the fit for doubles; "
            "allowed: numbers of their size"
        )
    return rows, responses
