"""Ids with rates, and the rates of `world/erring` against the paper's figures."""

import re

import pytest

from repair_hf.runtime.options import UserError
from repair_hf.toyworld.errors import EDITORS, LLMS, EditorErrors, LLMErrors, errors_of, name_of


def test_an_id_holds_the_rates_and_a_name_holds_all_of_them():
    assert errors_of("world/oracle?missed=0.1&malformed_rate=1", LLMS) == LLMErrors(missed=0.1, malformed_rate=1)
    assert errors_of("world?drift=.5", EDITORS) == EditorErrors(drift=0.5)
    assert (name_of("world/oracle", LLMS), name_of("world", EDITORS)) == ("world/oracle", "world")
    assert name_of("world?smear=0.50&drift=0.2", EDITORS) == "world?drift=0.2&smear=0.5"
    for models in (LLMS, EDITORS):  # other constants make another model, with answers and candidates of its own
        name = name_of("world/erring", models)
        assert name.startswith("world/erring?") and name_of(name, models) == name
        assert errors_of(name, models) == models["world/erring"]


@pytest.mark.parametrize("query", ["drift=2", "drift=-1", "drift=nan", "drift=", "drift", "noise=0.1"])
def test_a_wrong_query_is_named(query):
    with pytest.raises(UserError, match=re.escape(f"`world?{query}`: ")):
        errors_of(f"world?{query}", EDITORS)


@pytest.mark.parametrize(("deserve", "slack"), [(0.32, 0.02), (0.365, 0.002), (0.41, 0.02)])
def test_audits_agree_with_people_as_in_the_paper(deserve, slack):
    """Precision and recall from the rates, where a share of the failures deserves to pass."""
    rates = errors_of("world/erring", LLMS)
    rightly, wrongly = deserve * (1 - rates.rejects_good), (1 - deserve) * rates.keeps_bad
    assert rightly / (rightly + wrongly) == pytest.approx(0.902, abs=slack)
    assert rightly / deserve == pytest.approx(0.839, abs=0.001)
