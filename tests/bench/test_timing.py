from gated_deltanet.bench import timing


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
