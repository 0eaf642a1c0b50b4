from gated_deltanet.bench.timing import best_seconds


def test_contestants_take_turns_after_a_warm_up():
    calls = []
    best = best_seconds({name: lambda name=name: calls.append(name) for name in "ab"}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert best.keys() == {"a", "b"}
    assert all(seconds >= 0 for seconds in best.values())


def test_progress_sees_every_turn():
    seen = []
    best_seconds({"a": lambda: None}, rounds=2, track=lambda turns: seen.extend(turns) or turns)
    assert seen == ["a"] * 3
