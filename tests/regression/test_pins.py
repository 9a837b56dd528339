"""What the library computes today, to nine digits: channels, weights, losses, sizes, outputs.

After a change that is meant to change results: `python -m tests.regression.pin`.
"""

import pytest

from tests.regression.cases import CASES
from tests.regression.pin import read
from tests.regression.results import differences


@pytest.mark.parametrize("name", CASES)
def test_results_equal_the_references(name: str) -> None:
    found = CASES[name]().as_dict()
    lines = list(differences(read()[name], found))
    assert not lines, "\n".join([f"case {name}:", *lines])


def test_every_reference_has_a_case() -> None:
    assert list(read()) == list(CASES)
