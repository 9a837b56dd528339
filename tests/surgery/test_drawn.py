"""Random networks and plans: masked equals sliced."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.surgery.drawing import STEPS
from tests.surgery.fuzz import check_network

STEP = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 63), st.integers(0, 63))


@settings(max_examples=25)
@given(steps=st.lists(STEP, min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_a_random_network_is_pruned_correctly_or_not_at_all(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    assert check_network(steps, seed) in ("pruned", "rolled back", "nothing to prune")
