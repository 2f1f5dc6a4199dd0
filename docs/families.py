"""Members of a class by family, for the pages of the API.

The template of a class asks :func:`sections`. A class of few members has one section, without a
title. Members that the page of a shared class describes are named at the end, by
:func:`inherited`.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer

import epfast

#: public for other modules of the package, and not for users
INNER = (  # noqa: SIM905
    "contents has_site_per_row known_loss observed quantity stores filled checked_visits "
    "usual_damping get_metadata_routing set_fit_request set_partial_fit_request "
    "set_score_request set_predict_request"
).split()
#: members that need no families
FEW = 9
FAMILIES = {
    "Fit": "fit partial_fit fit_predict remove with_rows update copy add",
    "Predict": (
        "predict predict_proba predict_log_proba log_odds predict_latent predict_variance "
        "predict_quantile decision_function latent_mean_and_variance log_predictive "
        "loo_log_predictive score score_samples one_step_ahead"
    ),
    "Posterior": (
        "mean covariance variance precision shift marginal_precision labels names summary "
        "credible_interval coef_ coef_covariance_ intercept_ weights noise noise_variance "
        "concentration inclusion_probability prior_precision prior_variance prior prior_sites "
        "prior_cavities variables rating home_advantage drift joint table "
        "classes_ posterior_ posteriors_"
    ),
    "Draw": "sample sample_y sample_x sample_latent to_arviz",
    "Diagnostics": (
        "check n_refused n_sweeps history log_evidence evidence_bound "
        "log_marginal_likelihood log_likelihood residual n_iter"
    ),
    "Evidence, and its gradients": (
        "log_evidence_gradient log_evidence_slope loss_gradient "
        "loss_gain loss_of_rows prior_gradient relaxed"
    ),
    "How it was fitted": (
        "scheme loss loss_ power beta batch_size sites operator rows_seen with_checked_rows "
        "rank pivots learned by_batch program"
    ),
    "Save": "save",
    "Properties of the loss": (
        "describe is_likelihood log_concave bounded latents by_margin by_residual kinks "
        "slopes in_units_of_y has_offset learnable values "
        "with_parameters"
    ),
    "Evaluate": "evaluate tilted tempered core as_given add_offset with_offset responses limits",
    "For engines": (
        "typical started exact_sites steps check_power shifted_core own_moments panel_ends "
        "gives correlated response_width"
    ),
}
FAMILY_OF = {name: title for title, names in FAMILIES.items() for name in names.split()}


#: classes whose pages describe members for others; the first that has a member describes it
SHARED = (
    "FullPosterior",
    "GPPosterior",
    "gaussian.LatentPosterior",
    "IntegratedPosterior",
    "losses.Loss",
    "losses.Prior",
    "priors.Scale",
    "graph.Factor",
    "operators.Oracle",
    "schedules.Schedule",
    "schemes.Scheme",
)


def class_of(name: str) -> Any:
    """The class of this name in epfast."""
    found: Any = epfast
    for part in name.split("."):
        found = getattr(found, part)
    return found


def described(cls: type) -> dict[str, tuple[str, str]]:
    """The directive and the description of each public member that has one."""
    found: dict[str, tuple[str, str]] = {}
    for owner in reversed(cls.__mro__):
        if owner.__module__ == "builtins" or owner.__name__ == "BaseEstimator":
            continue  # they have pages of their own
        for name, member in vars(owner).items():
            if isinstance(member, property | functools.cached_property):
                kind, text = "autoproperty", inspect.getdoc(getattr(cls, name))
            elif inspect.isroutine(member):
                kind, text = "automethod", inspect.getdoc(getattr(cls, name))
            elif inspect.isgetsetdescriptor(member):
                kind, text = "autoattribute", inspect.getdoc(member)
            else:
                continue
            if text:
                found[name] = kind, text
        try:
            comments = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs()
        except PycodeError:  # compiled
            continue
        for (of, name), lines in comments.items():
            if of == owner.__qualname__:
                found.setdefault(name, ("autoattribute", "\n".join(lines)))
    return {n: of for n, of in found.items() if not n.startswith("_") and n not in INNER}


def inherited(cls: type) -> dict[str, list[str]]:
    """Members that the page of a shared class describes in the same words, by that page."""
    members = described(cls)
    found: dict[str, list[str]] = {}
    for page in SHARED:
        shared = class_of(page)
        if shared is cls:
            break
        same = [name for name, of in described(shared).items() if members.get(name) == of]
        if same:
            found[page] = same
            members = {name: of for name, of in members.items() if name not in same}
    return found


def sections(cls: type) -> list[tuple[str, list[tuple[str, str]]]]:
    """Titles, with the directives and names below each."""
    elsewhere = {name for names in inherited(cls).values() for name in names}
    members = {name: of[0] for name, of in described(cls).items() if name not in elsewhere}
    if len(members) <= FEW:
        return [("", [(kind, member) for member, kind in members.items()])] if members else []
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in [*FAMILIES, "Others"]}
    known = [member for member in FAMILY_OF if member in members]
    for member in dict.fromkeys([*known, *members]):
        groups[FAMILY_OF.get(member, "Others")].append((members[member], member))
    return [(title, group) for title, group in groups.items() if group]
