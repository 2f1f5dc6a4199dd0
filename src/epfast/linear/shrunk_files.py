"""What the file of a posterior with prior sites holds."""

from __future__ import annotations

from typing import Any

from epfast import schemes
from epfast.inference import files


def contents_of(post: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the header of a :class:`ShrunkPosterior`."""
    arrays, header = files.contents(post)
    state, problem, of_weights = post.state, post.problem, post.of_weights
    arrays |= {f"prior_sites_{name}": x for name, x in post.prior_sites._asdict().items()}
    arrays |= {"shift": state.shift, "mean": state.mean, "variance": state.variance}
    arrays |= {"visits": of_weights.visits, "start_precision": of_weights.start.precision}
    if problem.data.weights is not None:
        arrays["weights"] = problem.data.weights
    if problem.wide is None:
        arrays["precision"] = state.precision
    else:
        X = problem.data.X
        arrays["y"] = problem.data.y
        if hasattr(X, "indptr"):
            arrays |= {f"rows_{name}": getattr(X, name) for name in ("data", "indices", "indptr")}
        else:
            arrays["rows"] = X
    return arrays, header | {
        "posterior": post.kind,
        "scheme": schemes.describe(post.scheme),
        "prior": of_weights.prior.describe(),
        "columns": problem.n_columns,
        "log_evidence": float(state.log_evidence),
        "names": None if problem.names is None else list(problem.names),
    }
