from gated_deltanet.bench.decode import Cell, measure
from gated_deltanet.models import count, get_preset


def test_memory_of_attention_grows_with_the_context_and_of_recurrence_does_not():
    cells = [Cell(preset, context) for preset in ("gdn-nano", "transformer-nano") for context in (16, 64)]
    rows = measure(cells, "float32", steps=3, rounds=1)
    gdn, gdn_longer, transformer, transformer_longer = (row["session_bytes"] for row in rows)
    assert gdn == gdn_longer
    assert transformer_longer > 2 * transformer
    for row in rows:
        assert row["prefill_tokens_per_second"] > 0
        assert row["decode_tokens_per_second"] > 0


def test_session_holds_the_counted_state():
    (row,) = measure([Cell("gdn-nano", 16)], "bfloat16", steps=1, rounds=1)
    counted = count.state_bytes(get_preset("gdn-nano"))
    assert counted <= row["session_bytes"] < 1.2 * counted  # and what the head reads
