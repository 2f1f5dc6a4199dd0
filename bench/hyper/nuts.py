"""NUTS of NumPyro on models of groups: a process of its own, which needs no epfast.

    EPFAST_DATA=folder python bench/hyper/nuts.py seeds results.json

One chain on one thread; its seconds count compilation, since a user waits for it. Effects are not
centred where groups have few rows.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import numpy as jnp
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

sys.path.insert(0, str(Path(__file__).parent))
import tables

WARM, DRAWS = 1500, 4000
normal, sample, known = dist.Normal, numpyro.sample, numpyro.deterministic


def effects(name: str, sd: Any, size: int) -> Any:
    """N(0, sd) effects of a group, not centred."""
    z = sample(f"z_{name}", normal(0.0, 1.0).expand([size]))
    return known(name, sd * z)


def sd_of_precision() -> Any:
    return known("sd", sample("tau", dist.Gamma(1e-3, 1e-3)) ** -0.5)


def seeds(q: dict[str, Any]) -> None:
    X = np.column_stack([np.ones(len(q["n"])), q["x1"], q["x2"], q["x1"] * q["x2"]])
    w = sample("w", normal(0.0, 1e3).expand([4]))
    b = effects("b", sd_of_precision(), len(X))
    sample("y", dist.Binomial(jnp.asarray(q["N"]), logits=X @ w + b), obs=jnp.asarray(q["n"]))


def radon(q: dict[str, Any]) -> None:
    w = sample("w", normal(0.0, 10.0).expand([3]))
    sd, noise = (sample(name, dist.HalfNormal(1.0)) for name in ("sd", "sd_y"))
    a = effects("a", sd, int(q["J"]))[q["county_idx"] - 1]
    mean = w[0] + a + w[1] * q["log_uppm"] + w[2] * q["floor_measure"]
    sample("y", normal(mean, noise), obs=q["log_radon"])


def sleep(q: dict[str, Any]) -> None:
    w = sample("w", normal(0.0, 1e3).expand([2]))
    sds = sample("sds", dist.HalfNormal(60.0).expand([2]))
    root = sample("root", dist.LKJCholesky(2, 2.0))
    noise = sample("sd_y", dist.HalfNormal(60.0))
    z = sample("z", normal(0.0, 1.0).expand([2, 18]))
    u = known("u", (sds[:, None] * root) @ z)
    known("cor", root[1, 0])
    mean = w[0] + u[0, q["person"]] + (w[1] + u[1, q["person"]]) * q["day"]
    sample("y", normal(mean, noise), obs=q["y"])


def crossed(q: dict[str, Any], sizes: tuple[int, ...], latent: Any) -> None:
    sds = sample("sds", dist.HalfNormal(1.0).expand([len(sizes)]))
    for k, size in enumerate(sizes):
        latent = latent + effects(f"u{k}", sds[k], size)[q["g"][k]]
    sample("y", dist.Bernoulli(logits=latent), obs=q["y"])


def election(q: dict[str, Any]) -> None:
    w = sample("w", normal(0.0, 10.0).expand([2]))
    crossed(q, tables.ELECTION, w[0] + w[1] * q["x"])


def six(q: dict[str, Any]) -> None:
    crossed(q, tables.SIX, sample("w", normal(0.0, 10.0).expand([1]))[0])


def summary(draws: Any) -> dict[str, list[float]]:
    """Mean, sd, and the error of the mean in sds, of each number."""
    flat = np.asarray(draws, dtype=np.float64).reshape(len(draws), -1)
    count = np.atleast_1d(effective_sample_size(flat[None]))
    return {
        "mean": flat.mean(0).tolist(),
        "sd": flat.std(0).tolist(),
        "error": (count**-0.5).tolist(),
    }


def main(name: str, path: str) -> None:
    """Sample one model and write what its parameters are."""
    jax.config.update("jax_enable_x64", True)
    data, start = tables.load(name), (time.perf_counter(), time.process_time())
    model = globals()[name]
    sampler = MCMC(
        NUTS(lambda: model(data), target_accept_prob=0.95),
        num_warmup=WARM,
        num_samples=DRAWS,
        progress_bar=False,
    )
    sampler.run(jax.random.PRNGKey(0))
    found = sampler.get_samples()
    seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    numbers = {key: summary(draws) for key, draws in found.items() if not key.startswith("z")}
    document = {
        "seconds": min(seconds),
        "draws": DRAWS,
        "warm_up": WARM,
        "numpyro": numpyro.__version__,
        "divergences": int(np.sum(sampler.get_extra_fields().get("diverging", 0))),
        "parameters": numbers,
    }
    Path(path).write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
