"""The command line, and the demonstration."""

import pytest

import epfast
from epfast.__main__ import main


@pytest.mark.full
def test_the_demo_prints_what_it_found(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    assert main(["demo", "--pictures", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "epfast, LinearClassifier()                   0.091     0.951" in out
    assert "good: EP's mean is within" in out
    assert (tmp_path / "epfast_demo.png").stat().st_size > 20_000


def test_info_names_the_build(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert epfast.__version__ in out
    assert epfast.backend.build_config()["simd"] in out
    assert "cores" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--pictures", "no/such/folder"], "allowed: a folder that exists, or ''"),
        ([], "required: command"),
    ],
)
def test_wrong_arguments_end_in_a_sentence(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
