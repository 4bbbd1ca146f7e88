"""Options of compositional benchmarks, and the name under which cases are reported."""

import pytest

from repair_hf.evaluation.cases import whole_or_subset
from repair_hf.evaluation.compositional import CompositionalOptions
from repair_hf.runtime.options import UserError


@pytest.mark.parametrize(
    "found, missing, name", [(3, [], "b"), (2, [], "b_subset"), (4, [], "b_subset"), (3, ["x"], "b_subset")]
)
def test_only_the_whole_benchmark_has_its_name(found, missing, name):
    assert whole_or_subset("b", found=found, published=3, missing=missing, subset=True) == name


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (dict(compositional=["aro"]), "takes world, order, .* got 'aro'"),
        (dict(compositional=["sugarcrepe"]), "sugarcrepe=FOLDER"),
        (dict(compositional=["world=x"]), "takes no path, got x"),
        (dict(compositional=["order", "order=world"]), "names order twice"),
        (dict(order_seeds=[1, 1]), "takes one or more different numbers from 0 to 4294967295, got .1, 1."),
        (dict(compositional=["order=world"], order_seeds=[2**32]), "`order_seeds` takes .*, got .4294967296."),
        (dict(order_seeds=[2]), "`order_seeds` .2. is for `compositional` order; give it"),
        (dict(compositional=["world"], compositional_subset=True), "are for benchmarks of photographs"),
    ],
)
def test_options_that_cannot_work_raise(named, message):
    with pytest.raises(UserError, match=message):
        CompositionalOptions(**named)
