from gated_deltanet.bench import timing
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


def test_race_goes_on_until_the_time_is_up(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE", 0)
    calls = []
    best = timing.race({name: lambda name=name: calls.append(name) for name in "ab"}, seconds=0.01)
    assert best.keys() == {"a", "b"}
    assert calls.count("a") > 100  # quick ones are called many times a turn
    assert calls[:2] == ["a", "b"]


def test_race_gives_slow_contestants_two_turns(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE", 0)
    monkeypatch.setattr(timing, "TURN", 0)
    calls = []
    timing.race({name: lambda name=name: calls.append(name) for name in "ab"}, seconds=0)
    assert calls == ["a", "b"] * 3
