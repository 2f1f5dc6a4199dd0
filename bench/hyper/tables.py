"""The data of models that are sampled: two public ones and three that are simulated.

NumPy alone: the process that samples them has no epfast.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE, FILE = "EPFAST_DATA", "hierarchical.json.gz"
#: levels of the groups: states, ages, education, both; and of six crossed factors
ELECTION, SIX = (50, 6, 5, 30), (8, 10, 12, 16, 20, 30)


def read(name: str) -> dict[str, Any]:
    """A JSON file of the data folder."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise SystemExit(f"set {VARIABLE} to the folder with {name}")
    with gzip.open(Path(folder) / name) as file:
        found: dict[str, Any] = json.load(file)
    return found


def load(name: str) -> dict[str, Any]:
    """The data of one model, by name, as arrays."""
    if name in SIMULATED:
        return SIMULATED[name]()
    data = read(FILE)["models"][name]["data"]
    return {key: np.asarray(value) for key, value in data.items()}


def sleep() -> dict[str, Any]:
    """Reaction times of 18 persons over ten days, of the size of sleepstudy."""
    rng, day = np.random.default_rng(5), np.arange(10.0)
    own = rng.multivariate_normal([0.0, 0.0], [[610.0, 87.0], [87.0, 35.0]], 18)
    y = 251.0 + 10.5 * day + own[:, :1] + own[:, 1:] * day + 25.6 * rng.normal(size=(18, 10))
    return {"y": y.ravel(), "day": np.tile(day, 18), "person": np.repeat(np.arange(18), 10)}


def election() -> dict[str, Any]:
    """2,000 votes by state, age, education and age with education, and a common slope."""
    rng, n = np.random.default_rng(6), 2000
    state, age, school = (rng.integers(size, size=n) for size in ELECTION[:3])
    groups, x = np.stack([state, age, school, 5 * age + school]), rng.integers(2, size=n)
    latent = 0.2 - 0.3 * x
    for group, size, sd in zip(groups, ELECTION, (0.5, 0.3, 0.4, 0.2), strict=True):
        latent = latent + sd * rng.normal(size=size)[group]
    return {"y": (rng.random(n) < 1.0 / (1.0 + np.exp(-latent))).astype(int), "x": x, "g": groups}


def six() -> dict[str, Any]:
    """1,500 labels by six crossed factors."""
    rng, n = np.random.default_rng(7), 1500
    groups, latent = np.stack([rng.integers(size, size=n) for size in SIX]), np.full(n, 0.3)
    for group, size, sd in zip(groups, SIX, (1.0, 0.6, 0.3, 0.8, 0.2, 0.4), strict=True):
        latent = latent + sd * rng.normal(size=size)[group]
    return {"y": (rng.random(n) < 1.0 / (1.0 + np.exp(-latent))).astype(int), "g": groups}


SIMULATED = {"sleep": sleep, "election": election, "six": six}
