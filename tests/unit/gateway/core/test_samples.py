"""Rings of samples: what they answer is what a plain list of all samples answers."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from millstream.gateway.core.samples import LARGEST, LEVELS, SERIES_MAX, Key, Samples, rates

BEGIN = 1_700_000_040
A, LAG, NODE = ("a", "writes_per_s"), ("a", "stream_lag"), ("", "memory_bytes")
STEPS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 3), st.integers(0, 100_000)),
        st.dictionaries(st.sampled_from([A, LAG, NODE]), st.floats(0, 1e9), max_size=3),
    ),
    max_size=60,
)


class PlainList:
    """All samples, and the answer by looking at each of them."""

    def __init__(self) -> None:
        self.samples = list[tuple[int, Mapping[Key, float]]]()

    def answer(self, span_s: int, key: Key) -> dict[int, float]:
        """Return what is known: begin of a slot -> its number."""
        level = next(one for one in LEVELS if one.interval_s * one.size >= span_s)
        if not self.samples:
            return {}
        newest = self.samples[-1][0] // level.interval_s
        slots = dict[int, list[float]]()
        for second, figures in self.samples:
            slot = second // level.interval_s
            if slot > newest - level.size and key in figures:
                slots.setdefault(slot, []).append(figures[key])
        merged = max if key[1] in LARGEST else _mean
        return {slot * level.interval_s: merged(values) for slot, values in slots.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def known(samples: Samples, span_s: int, key: Key) -> dict[int, float]:
    window = samples.window(span_s)
    values = samples.series(window, key)
    assert len(values) == len(window.times_s)
    return {
        at_s: value
        for at_s, value in zip(window.times_s, values, strict=True)
        if value is not None
    }  # fmt: skip


def about(values: Mapping[int, float]) -> dict[int, float]:
    return {at_s: float(f"{value:.6e}") for at_s, value in values.items()}


@given(STEPS)
def test_it_answers_as_a_plain_list_does(steps) -> None:
    samples, plain, second = Samples(), PlainList(), BEGIN
    for step_s, figures in steps:
        second += step_s
        samples.add(second, figures)
        plain.samples.append((second, figures))
    for level in LEVELS:
        for key in (A, LAG, NODE):
            span_s = level.interval_s * level.size
            found, wanted = known(samples, span_s, key), plain.answer(span_s, key)
            assert found.keys() == wanted.keys()
            for at_s, value in wanted.items():
                assert abs(found[at_s] - value) <= 1e-6 * max(1.0, value)


def test_a_window_stays_the_same_while_samples_are_added() -> None:
    samples = Samples()
    for second in range(400):
        samples.add(BEGIN + second, {A: float(second)})
    window = samples.window(300)
    before = samples.series(window, A)
    assert before == [float(second) for second in range(100, 400)]
    samples.add(BEGIN + 400, {A: 400.0})
    after = samples.series(window, A)
    assert after == [None, *before[1:]], "the oldest was overwritten, the others are in place"
    assert window.times_s == list(range(BEGIN + 100, BEGIN + 400))


def test_a_clock_that_is_set_back() -> None:
    samples = Samples()
    samples.add(BEGIN + 100, {A: 1.0})
    samples.add(BEGIN + 99, {A: 9.0})
    assert known(samples, 300, A) == {BEGIN + 100: 1.0}, "a second of before is passed over"
    samples.add(BEGIN - 3600, {A: 2.0})
    assert known(samples, 300, A) == {BEGIN - 3600: 2.0}, "it begins anew, and does not wait"


def test_series_are_bounded_and_dropped_with_their_buckets() -> None:
    samples = Samples()
    samples.add(BEGIN, {(f"b{n}", "documents"): 1.0 for n in range(SERIES_MAX + 10)})
    assert len(samples.keys()) == SERIES_MAX
    day_s = LEVELS[-1].interval_s * LEVELS[-1].size
    samples.add(BEGIN + day_s + 60, {A: 1.0})
    assert A not in samples.keys()  # noqa: SIM118 - it is no mapping
    samples.add(BEGIN + day_s + 120, {A: 1.0})
    assert samples.keys() == [A]
    assert samples.series(samples.window(300), ("b1", "documents")) == [None] * 300


def test_rates_are_known_of_totals_that_grew() -> None:
    before = {A: 10.0, LAG: 10.0}
    now = {A: 30.0, LAG: 4.0, NODE: 5.0}
    assert rates(before, now, 2.0, [A[1], LAG[1], NODE[1]]) == {A: 10.0}
    assert rates(before, now, 0.0, [A[1]]) == {}
