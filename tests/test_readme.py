"""README's numbers are those of bench/results, and what it links to is there."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PEERS = {
    "LogisticRegression": "scikit-learn, `LogisticRegression`",
    "LogisticRegressionCV": "scikit-learn, `LogisticRegressionCV`",
    "Stan, NUTS": "Stan, the same linear model",
    "LinearClassifier": "**epfast, `LinearClassifier`**",
    "StandardScaler, LogisticRegression": "scikit-learn, `StandardScaler`, `LogisticRegression`",
    "StandardScaler, LogisticRegressionCV": "scikit-learn, `StandardScaler`, "
    "`LogisticRegressionCV`",
    "GaussianProcessClassifier, RBF": "scikit-learn, `GaussianProcessClassifier`, RBF",
    "StandardScaler, GaussianProcessClassifier, RBF": "scikit-learn, `StandardScaler`, "
    "`GaussianProcessClassifier`, RBF",
    "GPy, EP": "GPy, `GPClassification`",
    "StandardScaler, GPy, EP": "`StandardScaler`, GPy, `GPClassification`",
    "GPClassifier": "**epfast, `GPClassifier`**",
}


def stored(name):
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def peers():
    """The table of contestants."""
    sets = len({row["set"] for row in stored("user_peers")["sets"]})
    for row in stored("user_peers")["means"]:
        better = f"{row['better_than_first']} of {sets}"
        better = "–" if row["call"] == "LogisticRegression" else better
        yield (
            f"| {PEERS[row['call']]} | {row['log_loss']:.3f} | {better} | "
            f"{100 * row['calibration_error']:.1f} % | {1e3 * row['seconds']:.0f} ms |"
        )


def evidence(name, where, claim):
    """The evidence of a goal, by the beginnings of its first two fields."""
    (found,) = (e for w, c, _, e in stored(name)["goals"] if w == where and c.startswith(claim))
    return found


def speed():
    """The lines on speed."""
    cells = [row for row in stored("table1")["cells"] if row["scheme"] == "variational"]
    ours = [row["ours_ms"]["median"] for row in cells]
    ratios = [row["best_over_ours"]["median"] for row in cells]
    newton = stored("table1")["newton"]
    dense, arrow = ([row[f"{kind} over ours"] for row in newton] for kind in ("dense", "arrow"))
    yield (
        "| Newton's method of variational quadrature, 4 to 101 columns | "
        f"{min(dense):.0f} to {max(dense):.0f} times as fast as the same in NumPy, "
        f"{min(arrow):.0f} to {max(arrow):.0f} where NumPy has our algebra | `table1` |"
    )
    yield (
        f"| its closed form, on a minibatch of 10 to 100 rows | {1e3 * min(ours):.2f} to "
        f"{1e3 * max(ours):.1f} µs, {min(ratios):.0f} to {max(ratios):.0f} times as fast as the "
        "best NumPy | `table1` |"
    )
    sweeps = [r for r in stored("against_numpy")["table"] if r["piece"].endswith("ial sweep")]
    for piece, name in (("rows", "100 x 5 and 5,000 x 50"), ("process", "n = 50 and 500")):
        plain, best = (
            [row[f"{rival} over ours"] for row in sweeps if row["piece"].startswith(piece)]
            for rival in ("plain", "best")
        )
        yield (
            f"| a sequential sweep of EP, {piece}, {name} | {plain[0]:.1f} and {plain[1]:.0f} "
            f"times as fast as plain NumPy, {best[0]:.1f} and {best[1]:.1f} times the best | "
            "`speed.against_numpy` |"
        )
    shares = {
        c["d"]: c["share"]["median"] for c in stored("linear_speed")["chunked_sweeps"]["cells"]
    }
    yield (
        "| a sweep of EP with a full covariance, 128 and 256 columns | "
        f"{100 * shares[128]:.0f} and {100 * shares[256]:.0f} % of the rate of dgemm | "
        "`speed.linear` |"
    )
    fits = [
        evidence("linear_speed", f"scikit-learn, {name}, probit", "a fit").split()[3]
        for name in ("census", "a9a, sparse", "w8a, sparse")
    ]
    yield (
        "| probit EP, time over that of `LogisticRegression`: Census, a9a, w8a | "
        f"{', '.join(f'{float(ratio):.2g}' for ratio in fits)} | `speed.linear` |"
    )
    share = evidence("gp_speed", "matrix work, n = 1000", "n^3").split(",")[0]
    times = evidence("gp_speed", "site by site, n = 1000", "a sweep").split()[0]
    yield (
        f"| a sweep of a Gaussian process, n = 1,000 | {share} of the rate of dpotrf, {times} "
        "times as fast as rank-one updates in C | `speed.gp` |"
    )


@pytest.mark.parametrize("line", [*peers(), *speed()])
def test_numbers_are_those_of_the_benches(line):
    assert line in README.splitlines()


def test_no_table_has_other_lines():
    lines = {line for line in README.splitlines() if line.startswith("|") and "---" not in line}
    heads = {line for line in lines if line.startswith(("| |", "| what |"))}
    assert lines - heads == {*peers(), *speed()}


PAGES = [*ROOT.glob("*.md"), ROOT / "bench" / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http", "mailto")):
            path, _, anchor = target.partition("#")
            there = page.parent / path if path else page
            assert there.exists(), target
            if anchor:
                heads = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)
                assert anchor in {
                    re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads
                }
