"""Members of a class by family, inherited ones too, for the pages of the API.

The template of a class asks :func:`sections`. A class of few members has one section, without a
title.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer

#: what is public for other rooms of the package, and not for readers
INNER = (  # noqa: SIM905
    "contents known_loss observed quantity stores filled checked_visits usual_damping "
    "get_metadata_routing set_fit_request set_partial_fit_request set_score_request "
    "set_predict_request"
).split()
#: members that need no families
FEW = 9
FAMILIES = {
    "Fit": "fit partial_fit fit_predict remove with_rows update copy add",
    "Predict": (
        "predict predict_proba predict_log_proba predict_latent predict_variance predict_quantile "
        "decision_function latent_mean_and_variance log_predictive "
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
    "Is it right": (
        "check n_refused n_sweeps history log_evidence evidence_bound "
        "log_marginal_likelihood log_likelihood residual n_iter"
    ),
    "Evidence, and its gradients": (
        "log_evidence_gradient log_evidence_slope loss_gradient "
        "loss_gain loss_of_rows prior_gradient relaxed_energies relaxed"
    ),
    "How it was fitted": (
        "scheme loss loss_ power beta batch_size sites operator rows_seen with_checked_rows "
        "rank pivots learned by_batch program"
    ),
    "Keep": "save",
    "What kind of loss it is": (
        "describe is_likelihood log_concave bounded latents by_margin by_residual kinks "
        "slopes in_units_of_y has_offset learnable values "
        "with_parameters"
    ),
    "Evaluate": "evaluate tilted tempered core as_given add_offset with_offset responses limits",
    "What the engines ask of it": (
        "typical started exact_sites steps check_power shifted_core own_moments panel_ends "
        "break_points gives correlated response_width"
    ),
}
FAMILY_OF = {name: title for title, names in FAMILIES.items() for name in names.split()}


def described(cls: type) -> dict[str, str]:
    """The directive of each public member that has a description of its own."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if owner.__module__ == "builtins" or owner.__name__ == "BaseEstimator":
            continue  # they have pages of their own
        for name, member in vars(owner).items():
            if isinstance(member, property | functools.cached_property):
                if inspect.getdoc(member):
                    found[name] = "autoproperty"
            elif inspect.isroutine(member):
                if inspect.getdoc(getattr(cls, name)):
                    found[name] = "automethod"
            elif inspect.isgetsetdescriptor(member) and inspect.getdoc(member):
                found[name] = "autoattribute"
        try:
            comments = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs()
        except PycodeError:  # compiled
            continue
        for of, name in comments:
            if of == owner.__qualname__:
                found.setdefault(name, "autoattribute")
    return {n: kind for n, kind in found.items() if not n.startswith("_") and n not in INNER}


def sections(module: str, name: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Titles, with the directives and names below each."""
    cls: Any = importlib.import_module(module)
    for part in name.split("."):
        cls = getattr(cls, part)
    members = described(cls)
    if len(members) <= FEW:
        return [("", [(kind, member) for member, kind in members.items()])] if members else []
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in [*FAMILIES, "Others"]}
    known = [member for member in FAMILY_OF if member in members]
    for member in dict.fromkeys([*known, *members]):
        groups[FAMILY_OF.get(member, "Others")].append((members[member], member))
    return [(title, group) for title, group in groups.items() if group]
