"""Networks and plans that hypothesis draws: masked equals sliced."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.surgery.drawing import STEPS
from tests.surgery.fuzz import judge

STEP = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 63), st.integers(0, 63))


@settings(max_examples=60)
@given(steps=st.lists(STEP, min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_a_drawn_network_is_cut_right_or_not_at_all(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    assert judge(steps, seed) in ("cut", "rolled back", "nothing to cut")
