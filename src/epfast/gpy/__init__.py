"""EP for models of GPy: an inference method in place of GPy's own. Needs GPy: ``pip install GPy``.

GPy keeps its models, kernels, likelihoods and optimizers and gets from here the posterior, the log
evidence and its gradient by the kernel matrix and by the parameters of the likelihood.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, schedules
from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast.gaussian import GPPosterior, fit_process
from epfast.gaussian.diagnostics import broken
from epfast.gaussian.fit_gp import warn_of_process, with_descent
from epfast.gaussian.prior import KernelPrior, checked_kernel
from epfast.gaussian.rows import NO_ROWS
from epfast.gaussian.table import Request, choose
from epfast.inference import fit_from
from epfast.losses.base import Json

if TYPE_CHECKING:
    from GPy.kern import Kern

NEEDED = "epfast.gpy is for models of GPy, which is not installed: pip install GPy"
with _checks.needs(NEEDED, "GPy"):
    from GPy.inference.latent_function_inference import LatentFunctionInference
    from GPy.inference.latent_function_inference.posterior import PosteriorEP
    from GPy.likelihoods import Likelihood

from epfast.gpy.likelihoods import Metadata, Reading, read  # isort: skip  # noqa: E402

__all__ = ["EP"]

#: GPy's ways to run EP while it optimizes
MODES = ("nested", "alternated")
#: arguments of ``inference`` after Y, in GPy's order
OPTIONAL = ("mean_function", "Y_metadata", "precision", "K")
SPARSE = (
    "the model is sparse (it has inducing inputs), which epfast.gpy.EP does not support; allowed: "
    "GPy.core.GP and GPy.models.GPClassification, epfast.GPClassifier and GPRegressor with rank= "
    "for many rows, or GPy's own EPDTC"
)


class EP(LatentFunctionInference):  # type: ignore[misc]
    """Expectation propagation for models of GPy, in place of GPy's own ``EP``.

    Use it as ``GPy.core.GP(X, Y, kernel, likelihood, inference_method=epfast.gpy.EP())``, with
    ``Y_metadata`` if the likelihood needs it. ``GPy.models.GPClassification`` works in the same
    way. Arguments have GPy's names.

    Each evaluation of the model runs EP to convergence, from the sites of the previous evaluation
    (GPy's ``ep_mode="nested"``). The gradient is therefore that of the log evidence. GPy's default,
    "alternated", keeps the sites of the first hyper-parameters of an optimization.

    These likelihoods of GPy are supported, each with the density that it has in GPy:

    - ``Bernoulli`` with link ``Probit`` or ``Heaviside``, and ``Poisson`` with link ``Log``.
    - ``Gaussian``, and with ``Y_metadata["output_index"]`` also ``HeteroscedasticGaussian`` and
      ``MixedNoise`` of ``Gaussian``. The results are those of exact inference.
    - ``StudentT``, which is not log-concave. If sweeps do not converge, and for up to 1,000 rows,
      :class:`epfast.DoubleLoop` descends to a fixed point, as in :func:`epfast.fit_gp`.

    The gradient includes the parameters of the likelihood, so that ``optimize`` learns them
    together with the kernel.

    Mean functions, sparse models, a ``Y`` of several columns, ``MultioutputLikelihood``, and other
    likelihoods and subclasses are not supported. Errors recommend what to use instead. GPy's
    ``Gamma`` has shape exp(f), and therefore differs from :class:`epfast.losses.GammaNoise`, which
    has mean exp(f). If EP does not converge, there is a warning, and GPy gets the result. If it
    overflows, or if its result is impossible, it raises the error at which GPy's optimizers take a
    smaller step.

    Parameters
    ----------
    epsilon : float, default=1e-06
        Stop when a sweep changes the posterior by less, see ``tol`` of :class:`epfast.EP`. GPy's
        own EP uses the mean square change of the sites.
    eta : float, default=1.0
        Power of power EP. The tilted distribution has the same power of the likelihood. In GPy it
        has power 1.
    delta : float, default=1.0
        Damping, in (0, 1]. At 1 steps are not damped.
    always_reset : bool, default=False
        Start each evaluation from flat sites.
    max_iters : int or infinity, default=200
        Most sweeps.
    ep_mode : {"nested", "alternated"}, default="nested"
        Accepted for compatibility. Both values run EP at each evaluation, see above.
    parallel_updates : bool, default=False
        Update all sites at once, instead of in the default order of :class:`epfast.EP`.

    Attributes
    ----------
    last : GPPosterior or None
        Posterior of the latest evaluation, with its history and residual.
    """

    def __init__(
        self,
        epsilon: float = 1e-6,
        eta: float = 1.0,
        delta: float = 1.0,
        always_reset: bool = False,
        max_iters: float = 200,
        ep_mode: str = "nested",
        parallel_updates: bool = False,
    ) -> None:
        super().__init__()
        self.ep_mode = _checks.choice("ep_mode", ep_mode, MODES)
        if max_iters == math.inf:
            max_iters = 2**62
        self._schedule = schedules.EP(
            sweeps=_checks.integer("max_iters", max_iters, least=1),
            tol=_checks.number("epsilon", epsilon, least=0.0),
            damping=_checks.number("delta", delta, above=0.0, most=1.0),
            power=_checks.number("eta", eta, above=0.0),
            order="parallel" if _checks.flag("parallel_updates", parallel_updates) else "auto",
        )
        self.always_reset = _checks.flag("always_reset", always_reset)
        self.last: GPPosterior | None
        self.reset()

    def reset(self) -> None:
        """Drop the sites from which the next evaluation would start."""
        self.last = None
        #: Y of the latest evaluation
        self._given: Array | None = None

    def inference(
        self,
        kern: Kern,
        X: ArrayLike,
        likelihood: Likelihood,
        Y: ArrayLike,
        *optional: Any,
        **named: Any,
    ) -> tuple[PosteriorEP, float, dict[str, Array]]:
        """Return posterior, log evidence and its gradient, as GPy expects. O(n^3) per sweep.

        Parameters
        ----------
        kern : GPy.kern.Kern
            Not used if ``K`` is given.
        X : array_like of shape (n, d)
            Inputs.
        likelihood : GPy.likelihoods.Likelihood
            One of those above.
        Y : array_like of shape (n, 1)
            Labels 1 and 0 (or -1), counts, or numbers.
        *optional, **named
            By name, or in this order:

            - ``mean_function``: None, others are refused
            - ``Y_metadata``: None, or a dict as in GPy, with ``"output_index"``, (n, 1)
            - ``precision``: not used
            - ``K``: (n, n), the kernel matrix of ``X``, or None

        Returns
        -------
        posterior : GPy.inference.latent_function_inference.posterior.PosteriorEP
        log_evidence : float
        gradients : dict
            ``"dL_dK"``, (n, n), by the kernel matrix, ``"dL_dm"``, (n, 1), by the prior mean, and
            ``"dL_dthetaL"``, by the parameters of the likelihood, in GPy's order.

        Raises
        ------
        ValueError, TypeError
            For models that are not supported, or data that do not fit the likelihood.
        numpy.linalg.LinAlgError
            If the posterior or the evidence overflows, if the evidence is impossible (above 0), or
            if sweeps stop away from a fixed point. GPy's optimizers then take a smaller step.
        """
        if any(isinstance(part, Likelihood) for part in (Y, *optional)):
            raise ValueError(SPARSE)  # sparse models pass inducing inputs before the likelihood
        given = dict(zip(OPTIONAL, optional, strict=False)) | named
        unknown = [name for name in given if name not in OPTIONAL]
        if unknown:
            raise TypeError(f"{unknown[0]} is given; allowed: {', '.join(OPTIONAL)}")
        mean_function, Y_metadata, _, K = (given.get(name) for name in OPTIONAL)
        if mean_function is not None:
            raise ValueError(
                "the model has a mean function, which is not supported; allowed: None (add "
                "GPy.kern.Bias or Linear to the kernel for a constant or linear mean with a prior)"
            )
        reading = read(likelihood, Y, Y_metadata)
        if K is None:
            K = kern.K(X)
        post = self._fit(K, Y, reading)
        slopes = reading.slopes(post)
        if not np.isfinite(slopes).all():
            raise np.linalg.LinAlgError(
                "the gradient of the log evidence by the parameters of the likelihood is not finite"
            )
        self.last, self._given = post, np.array(Y, dtype=np.float64)
        alpha, R = post.alpha[:, None].copy(), post.marginal_precision
        gradient = np.multiply(alpha, 0.5 * alpha.T)
        gradient -= 0.5 * R
        return (
            PosteriorEP(woodbury_inv=R, woodbury_vector=alpha, K=K),
            post.log_evidence,
            {"dL_dK": gradient, "dL_dthetaL": slopes, "dL_dm": alpha},
        )

    def LOO(  # noqa: N802
        self,
        kern: Kern,
        X: ArrayLike,
        Y: ArrayLike,
        likelihood: Likelihood,
        posterior: PosteriorEP | None = None,
        Y_metadata: Metadata | None = None,
        K: ArrayLike | None = None,
    ) -> Array:
        """Leave-one-out log predictive probability or density of each Y, from the cavities.

        ``model.inference_method.LOO(model.kern, model.X, model.Y, model.likelihood)``. GPy's own
        ``EP`` has the formula for Gaussian noise. O(n^3) per sweep, from the sites found last.

        Parameters
        ----------
        kern, X, Y, likelihood, Y_metadata, K
            As in :meth:`inference`.
        posterior
            Of GPy's signature. Not used.

        Returns
        -------
        ndarray of shape (n, 1)
        """
        del posterior
        reading = read(likelihood, Y, Y_metadata)
        post = self._fit(kern.K(X) if K is None else K, Y, reading)
        return post.loo_log_predictive()[:, None]

    # -- files --

    def to_dict(self) -> dict[str, Json]:
        """Settings for JSON, as GPy's ``save_model`` and ``to_dict`` of models ask.

        A model that is loaded runs EP again. GPy makes objects by evaluating the entry "class", in
        which it knows its own name alone: this one imports epfast.

        Returns
        -------
        dict
        """
        schedule = self._schedule
        return {
            "class": f"__import__('importlib').import_module({__name__!r}).{type(self).__name__}",
            "epsilon": float(schedule.tol),
            "eta": float(schedule.power or 1.0),
            "delta": float(schedule.damping or 1.0),
            "always_reset": self.always_reset,
            "max_iters": int(schedule.sweeps),
            "ep_mode": self.ep_mode,
            "parallel_updates": schedule.order == "parallel",
        }

    def _fit(self, K: ArrayLike, Y: ArrayLike, reading: Reading) -> GPPosterior:
        loss, rows = reading.loss, reading.rows
        n = len(rows)
        schedule = with_descent(self._schedule, loss, n)
        if np.shape(K) != (n, n):
            raise ValueError(f"K has shape {np.shape(K)}; allowed for {n} rows of Y: ({n}, {n})")
        if self._given is not None and np.array_equal(self._given, Y):
            # known to be a kernel matrix, so not checked. A copy, since GPy may keep the array
            kernel = KernelMatrix(np.array(K, dtype=np.float64, order="C"))
        else:
            kernel = checked_kernel(K, False, 0.0)
        chosen = choose(Request(loss, None, "process", schedule=schedule))
        problem = chosen.problem(NO_ROWS._replace(y=rows), KernelPrior(kernel))
        start = None if self.always_reset else self.last
        if start is not None and len(start.y) != n:
            start = None
        try:
            post = fit_from(partial(fit_process, problem, warns=False), start)
        except FloatingPointError as error:
            raise np.linalg.LinAlgError(str(error)) from error
        assert isinstance(post, GPPosterior)
        reason = broken(post)
        if reason is not None:
            raise np.linalg.LinAlgError(reason)
        warn_of_process(post)
        return post
