"""The command line; the optima of the demonstration do not hang on the last bits."""

import numpy as np
import pytest

import epfast
from epfast.__main__ import main
from epfast._demo import schemes


@pytest.mark.full
def test_the_demo_prints_what_it_found(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    assert main(["demo", "--pictures", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "epfast, LinearClassifier()                   0.091     0.951" in out
    assert "good: EP's mean is within" in out
    assert "quasi 0-1  variational quadrature     27.17    12.00      11    -43.5" in out
    for name in "epfast_demo.png", "epfast_schemes.png":
        assert (tmp_path / name).stat().st_size > 20_000


def test_info_names_the_build(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert epfast.__version__ in out
    assert epfast.backend.build_config()["simd"] in out
    assert "cores" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--sweeps", "0"], "allowed: an integer >= 1"),
        (["demo", "--pictures", "no/such/folder"], "allowed: a folder that exists, or ''"),
        ([], "required: command"),
    ],
)
def test_wrong_arguments_end_in_a_sentence(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.full
def test_the_quasi01_optimum_is_one_whatever_the_rounding():
    data = pytest.importorskip("sklearn.datasets")
    features, target = data.load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    X = features - features.mean(axis=0)
    X /= np.linalg.norm(X, axis=0)
    X = np.hstack([X, np.ones((len(X), 1))]) * (1.0 + 1e-12 * rng.normal(size=(len(X), 31)))
    y = np.where(target == 0, 1.0, -1.0)
    hinge = schemes.optimum(epfast.Hinge(), X, y, np.zeros(31))
    assert schemes.cost(epfast.Hinge(), X, y)(hinge) == pytest.approx(54.7298, abs=1e-3)
    loss = epfast.Quasi01(epsilon=0.1)
    found = schemes.optimum(loss, X, y, hinge)
    assert schemes.cost(loss, X, y)(found) == pytest.approx(12.0006, abs=1e-3)
