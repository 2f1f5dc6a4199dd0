"""The catalogue: what a factor of the library defines, and that files know all of them."""

from epfast.graph import Factor, catalogue
from epfast.graph.factors import Kind
from epfast.graph.files import KINDS


def test_a_kind_defines_nine_things_and_its_predictions():
    defined = {name for name in {**vars(Kind), **Kind.__annotations__} if name[0] != "_"}
    assert len(defined) <= 9, defined


def test_files_hold_all_factors_of_the_library():
    named = {getattr(catalogue, name) for name in catalogue.__all__}
    assert named <= set(KINDS)
    assert Factor not in KINDS
