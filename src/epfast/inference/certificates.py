"""The distance of a posterior from the exact one: a check by importance sampling, in words."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast.inference.importance import ExactMoments, ImportanceWeights, Proposal, Sampler, moments

#: degrees of freedom of the draws: this, or the number of dimensions where that is larger. Draws of
#: fewer miss the shell where a Gaussian of many dimensions has its mass
LEAST_DF = 7.0
#: effective draws below which the draws say nothing, and from which, or from half of them all, they
#: say enough
NOTHING, ENOUGH = 20.0, 100.0
#: share of effective draws below which a better Gaussian is looked for
ALIKE = 0.4
#: k-hat from which draws are believed only if half of them are effective, or 1 - 1 / log10(draws)
#: where that is smaller (Vehtari et al. 2024)
HEAVY = 0.7
#: "good": the mean within so many sd, sds within so large a factor, the log evidence within so many
#: nats
GOOD_SHIFT, GOOD_FACTOR, GOOD_EVIDENCE = 0.25, 1.25, 1.0
#: "do not use": a mean further than so many sd, an sd by more than that factor
BAD_SHIFT, BAD_FACTOR = 0.5, 1.5
#: so many standard errors are taken off for "do not use". For "good" they are added, to a mean and
#: an sd of one or two
CERTAIN = 3.0
#: "do not use" without draws: so many sd, and so large a factor, from the Gaussian that maximises
#: the evidence bound. Of a posterior that is not Gaussian it differs from EP by up to about 1 sd
#: and a factor of 2, though EP be right
FAR = 3.0
#: of a check, the best first
VERDICTS = "good", "usable", "uncertain", "do not use"


@dataclass(frozen=True, eq=False)
class Check:
    """The result of a check by importance sampling. ``str(check)`` says it in words.

    Attributes
    ----------
    verdict : {"good", "usable", "uncertain", "do not use"}
        "good": the mean is within a quarter of a standard deviation of the exact one, the standard
        deviations within 25 %, three standard errors added (fewer where they are many), the log
        evidence within 1, and other modes are excluded or were looked for. "do not use": the mean
        is off by half a standard deviation or a standard deviation by half, beyond doubt, or by a
        quarter beside a log evidence that is too high. "usable": between the two. "uncertain": the
        draws cannot tell.
    reason : str
        Why, in words.
    draws : int
        Draws: antithetic pairs of a multivariate t with the mean and scale of the approximation,
        of max(7, d) degrees of freedom, a fifth (1 / d beyond 5) of 4 and twice as wide. Where the
        posterior may have several modes, of Gaussians at other modes and of the prior too.
    effective_draws : float
        How many of them count, 1 / Σ w^2.
    khat : float
        Shape of the Pareto tail of the weights (Vehtari et al. 2024). -inf where the largest are
        all alike, inf where too few have any weight.
    log_evidence, log_evidence_se : float
        Of the exact posterior, with its standard error.
    log_evidence_ep : float
        Of the approximation.
    mean, mean_se : ndarray of shape (d,)
        Of the exact posterior, with standard errors. Of the latent values for processes. NaN where
        fewer than 20 draws are effective.
    sd : ndarray of shape (d,)
        Standard deviations of the exact posterior.
    shift, shift_se : float
        Largest distance of a mean from the approximation's, in standard deviations of the latter,
        and the standard error of that one.
    shifts, shift_ses : ndarray of shape (d,)
        The same of every mean, with signs: exact minus approximate.
    sd_factor, sd_factor_se : float
        Standard deviation over that of the approximation, where that is furthest from 1.
    sd_factors : ndarray of shape (d,)
        The same of every standard deviation.
    repaired : bool
        Whether the draws of the approximation said too little, and ``mean``, ``sd``, ``shift``,
        ``sd_factor`` and ``log_evidence`` come from draws of a better Gaussian as well.
    effective_draws_repaired : float or None
        How many of all these count.
    point : str
        Of an average, the hyper-parameters of the posterior that is checked, whose log evidences
        these are. Else "".
    """

    verdict: str
    reason: str
    draws: int
    effective_draws: float
    khat: float
    log_evidence: float
    log_evidence_se: float
    log_evidence_ep: float
    mean: Array = field(repr=False)
    mean_se: Array = field(repr=False)
    sd: Array = field(repr=False)
    shift: float
    shift_se: float
    shifts: Array = field(repr=False)
    shift_ses: Array = field(repr=False)
    sd_factor: float
    sd_factor_se: float
    sd_factors: Array = field(repr=False)
    repaired: bool = False
    effective_draws_repaired: float | None = None
    point: str = ""

    def __str__(self) -> str:
        draws = f"k-hat {short(self.khat)}, {self.effective_draws:,.0f} effective draws of"
        draws += f" {self.draws:,}"
        if self.effective_draws_repaired is not None and self.repaired:
            draws += f"; with a better Gaussian {self.effective_draws_repaired:,.0f}"
        sampled = "sampled none"
        if np.isfinite(self.log_evidence):
            sampled = f"sampled {self.log_evidence:.2f} ± {short(self.log_evidence_se)}"
        there = " there" if self.point else ""
        return (
            f"{self.verdict}: {self.reason} ({draws}); log evidence{there} "
            f"{self.log_evidence_ep:.2f}, {sampled}"
        )


def short(value: float) -> str:
    """A number with two digits, and whole from 100 on."""
    return f"{value:.2g}" if not abs(value) >= 100 else f"{value:,.0f}"


def check(
    proposal: Proposal,
    log_evidence: float,
    draws: int,
    rng: np.random.Generator | int | None,
    bound: float = np.inf,
    one_mode: bool = True,
) -> Check:
    """Check an approximation, from which a proposal draws. See :meth:`epfast.FullPosterior.check`.

    bound: no right log evidence is above it. one_mode: whether the exact posterior has one mode for
    certain.
    """
    draws = _checks.integer("draws", draws, least=100, most=10**7)
    seed = _checks.seed("rng", rng)
    sampler = Sampler(draws + draws % 2, seed, max(LEAST_DF, float(proposal.size)))
    parts: list[Proposal] = [proposal]
    better, searched = None, one_mode
    if not one_mode:
        others, searched = proposal.others(seed, log_evidence)
        parts += others
    own = used = sampler.weigh(*parts)
    if len(parts) == 1 and not _believed(own, sampler.draws, ALIKE):
        better = proposal.better()
        if better is not None:
            both = [*parts, better]
            both = both if all(part.has_density for part in both) else [better]
            of_both = sampler.weigh(*both)
            if of_both is not None and (own is None or _says_more(of_both, own)):
                parts, used = both, of_both
    mean, spread = proposal.moments()
    q, sd = len(mean), np.where(spread > 0.0, spread, 1.0)
    nan = np.full(q, np.nan)
    seen = ExactMoments(nan, nan, nan, nan, float("nan"))
    if used is not None and used.effective >= NOTHING:
        reference = parts[used.reference]
        unit = reference.moments()
        unit = unit[0], np.where(unit[1] > 0.0, unit[1], 1.0)
        seen = moments(sampler, parts, used, unit, reference.has_moments)
        seen = seen.beside(*unit, mean, sd)
    believed = _believed(used, sampler.draws)
    verdict = _verdict(log_evidence, seen, used, believed, searched) or _beside(proposal, better)
    if log_evidence > bound:
        reason = f"the log evidence is {log_evidence:.4g}, and cannot be above 0, since no factor"
        verdict = "do not use", f"{reason} is above 1"
    worst, widest = _largest(seen.shift), _largest(seen.log_sd)
    factor = float(np.exp(seen.log_sd[widest]))
    return Check(
        *verdict,
        sampler.draws,
        0.0 if own is None else own.effective,
        np.inf if own is None else own.khat,
        float("nan") if used is None or used.effective < NOTHING else used.log_mean,
        seen.log_mean_se,
        log_evidence,
        mean + sd * seen.shift,
        sd * seen.shift_se,
        spread * np.exp(seen.log_sd),
        float(abs(seen.shift[worst])),
        float(seen.shift_se[worst]),
        seen.shift,
        seen.shift_se,
        factor,
        float(factor * seen.log_sd_se[widest]),
        np.exp(seen.log_sd),
        used is not own,
        None if used is own or used is None else used.effective,
    )


def _largest(values: Array) -> int:
    return int(np.abs(values).argmax())


def _says_more(of_both: ImportanceWeights, own: ImportanceWeights) -> bool:
    """Whether more draws count, or mass is seen that the draws of the approximation miss."""
    error = CERTAIN * np.hypot(of_both.log_mean_se, own.log_mean_se)
    return of_both.effective > own.effective or of_both.log_mean > own.log_mean + error


def _believed(weighed: ImportanceWeights | None, draws: int, share: float = 0.0) -> bool:
    """Whether weights suffice. k-hat alone decides nothing: it is high for nearly equal weights."""
    if weighed is None or weighed.effective < max(min(ENOUGH, 0.5 * draws), share * draws):
        return False
    heavy = min(HEAVY, 1.0 - 1.0 / np.log10(draws))
    return weighed.khat < heavy or weighed.effective > 0.5 * draws


def _verdict(
    log_evidence: float,
    seen: ExactMoments,
    used: ImportanceWeights | None,
    believed: bool,
    searched: bool,
) -> tuple[str, str] | None:
    """The verdict and its reason, from all the draws together. None if they cannot tell."""
    if used is not None and used.effective >= NOTHING:
        least = np.abs(seen.shift) - CERTAIN * seen.shift_se
        if least.max() > BAD_SHIFT:
            return "do not use", _distance(seen, int(least.argmax()))
        least = np.abs(seen.log_sd) - CERTAIN * seen.log_sd_se
        if least.max() > np.log(BAD_FACTOR):
            return "do not use", _widths(seen, int(least.argmax()))
    if not believed or used is None:
        return None
    off = _largest(seen.shift)
    near = f"EP's mean is within {short(abs(seen.shift[off]))} sd of the exact one"
    gap = abs(used.log_mean - log_evidence)
    too_high = log_evidence - used.log_mean - CERTAIN * seen.log_mean_se > GOOD_EVIDENCE
    if too_high and (np.abs(seen.shift) - CERTAIN * seen.shift_se).max() > GOOD_SHIFT:
        # neither would do alone: one pass over many rows misses its log evidence, from below
        return "do not use", f"{_distance(seen, off)}, its log evidence too high by {short(gap)}"
    # the largest of many estimates is too large by itself
    errors = max(0.0, CERTAIN - np.sqrt(2.0 * np.log(max(1.0, 0.5 * len(seen.shift)))))
    most = np.abs(seen.shift) + errors * seen.shift_se
    if most.max() > GOOD_SHIFT:
        return "usable", _distance(seen, int(most.argmax()))
    most = np.abs(seen.log_sd) + errors * seen.log_sd_se
    if most.max() > np.log(GOOD_FACTOR):
        return "usable", f"{near}, but {_widths(seen, int(most.argmax()))}"
    if not searched:
        return "usable", f"{near} of this mode; whether there are other modes is not known"
    if gap - CERTAIN * seen.log_mean_se > GOOD_EVIDENCE:
        return (
            "usable",
            f"{near}, but its log evidence is off by {short(gap)}: do not compare by it",
        )
    return "good", near


def _beside(proposal: Proposal, better: Proposal | None) -> tuple[str, str]:
    """The verdict where draws are too few: whether the closest Gaussian is far away."""
    cannot = "the check cannot tell, too few draws are effective"
    if better is None or not better.is_best:
        return "uncertain", cannot
    (center, spread), (mean, sd) = proposal.moments(), better.moments()
    uncertain, exact = (spread > 0.0) & (sd > 0.0), np.zeros(len(mean))
    scale, sd = np.where(uncertain, spread, 1.0), np.where(uncertain, sd, 1.0)
    seen = ExactMoments((mean - center) / scale, exact, np.log(sd / scale), exact, 0.0)
    off, wide = _largest(seen.shift), _largest(seen.log_sd)
    if abs(seen.shift[off]) > FAR:
        return "do not use", f"{_distance(seen, off)}, judging by the closest Gaussian"
    if abs(seen.log_sd[wide]) > np.log(FAR):
        return "do not use", f"{_widths(seen, wide)}, judging by the closest Gaussian"
    return "uncertain", (
        f"{cannot}; the mean of the closest Gaussian is {short(abs(seen.shift[off]))} sd away"
    )


def _distance(seen: ExactMoments, k: int) -> str:
    error = f" (± {short(seen.shift_se[k])})" if seen.shift_se[k] else ""
    return f"EP's mean is {short(abs(seen.shift[k]))} sd{error} from the exact one"


def _widths(seen: ExactMoments, k: int) -> str:
    factor = np.exp(abs(seen.log_sd[k]))
    return f"EP's sd is {short(factor)} times too {'small' if seen.log_sd[k] > 0 else 'large'}"
