"""A session is its appends: cut, taken back, copied or stored, it holds what the model makes of the same tokens."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gated_deltanet import CausalLM, ModelConfig, get_preset
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.models import session as session_module
from gated_deltanet.models import session_file
from gated_deltanet.models.session import Session
from gated_deltanet.models.state import tensors

ARCHITECTURES = ["gdn", "gdn-h1", "gdn-h2", "mamba", "mamba2", "transformer", "samba"]
MINI = ModelConfig(12, 3, (GatedDeltaNet(1, 4, 6), Attention(2, 4, window=5), Attention(1, 4)), 16, 50)


@pytest.fixture(scope="module", params=ARCHITECTURES, name="model")
def nano(request):
    torch.manual_seed(0)
    return CausalLM(get_preset(f"{request.param}-nano"))


@pytest.fixture(scope="module")
def mini():
    torch.manual_seed(1)
    return CausalLM(MINI)


def tokens(*shape, seed=1, vocab=257):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


def opened(model, row, cuts, keep=0):
    """A session that appended row[..., a:b] for each of the cuts."""
    session = Session(model, keep)
    for a, b in pairwise(cuts):
        session.append(row[..., a:b])
    return session


def assert_same(a, b):
    """Bit for bit."""
    assert a.length == b.length
    assert torch.equal(a.logits, b.logits)
    left, right = a.snapshot().now.state, b.snapshot().now.state
    assert all(torch.equal(x, y) for x, y in zip(tensors(left), tensors(right), strict=True))


@torch.no_grad()
@pytest.mark.parametrize("cuts", [range(0, 71), [0, 1, 40, 70], [0, 70]], ids=["tokens", "pieces", "whole"])
def test_append_in_any_cuts_equals_the_full_forward(model, cuts):
    row, session = tokens(2, 70), Session(model)
    logits = torch.cat([session.append(row[:, a:b]) for a, b in pairwise(cuts)], 1)
    expected = model(row)[0]
    assert (logits - expected).abs().max() < 1e-5
    assert (session.logits - expected[:, -1]).abs().max() < 1e-5
    assert session.length == 70


def test_one_sequence_needs_no_axis_of_its_own(mini):
    row, plain, batch = tokens(9, vocab=50), Session(mini), Session(mini)
    assert torch.equal(plain.append(row), batch.append(row[None])[0])
    assert torch.equal(plain.read(row), batch.read(row[None])[0])
    assert_same(plain, batch)


def test_list_of_tokens_is_as_good_as_a_tensor(mini):
    row, plain, listed = tokens(9, vocab=50), Session(mini), Session(mini)
    assert torch.equal(plain.append(row), listed.append(row.tolist()))
    assert torch.equal(plain.read(row), listed.read(row.tolist()))
    with pytest.raises(ValueError, match=r"tokens is \[0\], expected"):
        listed.append([])


def test_read_gives_the_last_logits_of_a_document_in_pieces(model, monkeypatch):
    row = tokens(2, 70)
    whole, pieces = Session(model), Session(model)
    expected = whole.append(row)[:, -1]
    monkeypatch.setattr(session_module, "PIECE", 32)
    assert (pieces.read(row) - expected).abs().max() < 1e-5
    assert_same(pieces, opened(model, row, [0, 32, 64, 70]))


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9, 24])
def test_rollback_is_exact(model, n):
    row, cuts = tokens(2, 84), [0, 60, 80, 81, 82, 83, 84]
    session = opened(model, row, cuts, keep=24)
    session.rollback(n)
    never_saw_them = opened(model, row, [*(cut for cut in cuts if cut < 84 - n), 84 - n])
    assert_same(session, never_saw_them)
    assert torch.equal(session.append(row[:, :5]), never_saw_them.append(row[:, :5]))


def test_document_that_cannot_be_read_to_its_end_is_not_read_at_all(mini, monkeypatch):
    monkeypatch.setattr(session_module, "PIECE", 4)
    session = opened(mini, tokens(9, vocab=50), [0, 9], keep=2)
    before = session.snapshot()
    with pytest.raises(ValueError, match="tokens holds 50"):
        session.read(torch.tensor([1] * 9 + [50]))
    assert session.snapshot() == before


def test_session_that_keeps_less_holds_less(mini):
    session = opened(mini, tokens(9, vocab=50), range(10), keep=5)
    plain = Session(mini)
    plain.restore(session.snapshot())
    assert plain.nbytes == opened(mini, tokens(9, vocab=50), range(10)).nbytes < session.nbytes


def test_rollback_of_everything_leaves_an_empty_session(mini):
    session = opened(mini, tokens(9, vocab=50), [0, 4, 9], keep=9)
    session.rollback(9)
    assert session.length == session.nbytes == 0
    with pytest.raises(ValueError, match="the session is empty"):
        _ = session.logits


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 7)), max_size=12), st.integers(0, 9))
def test_any_appends_and_rollbacks_are_the_appends_that_remain(mini, actions, keep):
    session, remaining, most = Session(mini, keep), [], 0
    for seed, (is_append, n) in enumerate(actions):
        if is_append:
            remaining.append(tokens(n, seed=seed, vocab=50))
            session.append(remaining[-1])
        elif n <= min(keep, session.length - max(0, most - keep)):
            session.rollback(n)
            while n:
                piece = remaining.pop()
                if n < len(piece):
                    remaining.append(piece[: len(piece) - n])
                n = max(0, n - len(piece))
        most = max(most, session.length)
    again = Session(mini)
    for piece in remaining:
        again.append(piece)
    if remaining:
        assert_same(session, again)


@pytest.mark.parametrize(
    ("keep", "n", "most"), [(0, 1, 0), (3, 4, 3), (30, 10, 9), (3, -1, 3), (3, 1.0, 3), (3, True, 3)]
)
def test_rollback_beyond_keep_or_the_length_is_refused(mini, keep, n, most):
    session = opened(mini, tokens(9, vocab=50), [0, 7, 9], keep)
    before = session.snapshot()
    with pytest.raises(ValueError, match=rf"n is {n}, expected from 0 to {most}: keep is {keep}, and of the 9"):
        session.rollback(n)
    assert session.snapshot().now is before.now


def test_forks_and_snapshots_do_not_see_each_other(model):
    row = tokens(1, 40)
    session = opened(model, row, [0, 30], keep=3)
    snapshot, fork = session.snapshot(), session.fork()
    fork.append(row[:, 30:35])
    assert session.snapshot().now is snapshot.now
    session.append(row[:, 35:])
    assert_same(fork, opened(model, row, [0, 30, 35]))
    session.restore(snapshot)
    assert_same(session, opened(model, row, [0, 30]))
    session.rollback(2)
    assert_same(session, opened(model, row, [0, 28]))
    assert_same(fork, opened(model, row, [0, 30, 35]))


def test_snapshot_of_another_model_is_refused(mini):
    with pytest.raises(ValueError, match="the snapshot is of another model"):
        Session(mini).restore(Session(CausalLM(MINI)).snapshot())


def test_memory_is_constant_while_decoding(model):
    """Of recurrent layers, and of windows; full attention keeps every token, in buffers of 64 more at a time."""
    session, sizes = Session(model), []
    for token in tokens(68).split(1):  # more than the window
        session.append(token)
        sizes.append(session.nbytes)
    grows = any(isinstance(mixer, Attention) and mixer.window is None for mixer in model.config.mixers)
    assert len(set(sizes)) == (3 if grows else 1)
    for mixer in model.config.mixers:
        if isinstance(mixer, Attention) and mixer.window:
            shapes = [list(x.shape) for x in tensors(session.snapshot().now.state)]
            assert [1, mixer.window, mixer.H_kv, mixer.d_head] in shapes


@pytest.mark.parametrize("name", ["gdn", "mamba", "mamba2"])
def test_kept_states_cost_what_they_are(name):
    model, keep = CausalLM(get_preset(f"{name}-nano")), 5
    plain, keeping = (opened(model, tokens(20), range(21), k) for k in (0, keep))
    assert keeping.nbytes == (1 + keep) * plain.nbytes + keep * 8  # bytes of an int64 token
    drafts = opened(model, tokens(20), [0, 10, 15, 20], keep)
    assert drafts.nbytes == 2 * plain.nbytes + 5 * 8


def test_appended_tokens_are_kept_as_they_were(mini):
    row = tokens(6, vocab=50)
    given_away = row.clone()
    session = Session(mini, keep=4)
    session.append(given_away)
    given_away.zero_()
    session.rollback(2)
    assert_same(session, opened(mini, row, [0, 4]))


def test_saved_session_goes_on_with_the_same_bits(model, tmp_path):
    row = tokens(2, 50)
    session, again = opened(model, row, [0, 40]), Session(model, keep=2)
    session.save(tmp_path / "a.state")
    again.load(tmp_path / "a.state")
    assert_same(again, session)
    assert torch.equal(again.append(row[:, 40:]), session.append(row[:, 40:]))
    again.rollback(2)
    assert [file.name for file in tmp_path.iterdir()] == ["a.state"]


def test_loaded_state_is_aligned_as_torch_allocates_it(model, tmp_path):
    opened(model, tokens(3, 7), [0, 7]).save(tmp_path / "a.state")
    again = Session(model)
    again.load(tmp_path / "a.state")
    _, state, x = again.snapshot().now
    assert x is not None
    assert {each.data_ptr() % 64 for each in (x, *tensors(state))} == {0}


def test_session_in_bfloat16_is_saved_and_taken_back_exactly(tmp_path):
    torch.manual_seed(0)
    model, row = CausalLM(MINI).to(torch.bfloat16), tokens(9, vocab=50)
    session, again = opened(model, row, [0, 5, 9], keep=3), Session(model)
    session.rollback(2)
    session.save(tmp_path / "a.state")
    again.load(tmp_path / "a.state")
    assert_same(again, session)
    assert_same(session, opened(model, row, [0, 5, 7]))


def rewrite(file, **header):
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file(load_file(file), file, {name: value for name, value in (metadata | header).items() if value})


def flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "is not a whole safetensors file"),
        (lambda file: file.write_bytes(file.read_bytes()[:20]), "is not a whole safetensors file"),
        (lambda file: file.write_bytes(b""), "is not a whole safetensors file"),
        (lambda file: file.write_text("a text, of some length"), "is not a whole safetensors file"),
        (lambda file: save_file({"x": torch.zeros(3)}, file), "format is None, expected 'gated_deltanet session'"),
        (lambda file: rewrite(file, version="2"), "version is '2', expected '1'"),
        (lambda file: rewrite(file, model="0"), "is of another model"),
        (lambda file: rewrite(file, length="7"), "is damaged"),
        (lambda file: rewrite(file, digest=""), "is damaged"),
        (flip, "is damaged"),
        (lambda file: file.unlink(), "there is no file"),
    ],
)
def test_spoiled_file_is_refused_and_nothing_is_loaded(mini, spoil, message, tmp_path):
    file, row = tmp_path / "a.state", tokens(9, vocab=50)
    opened(mini, row, [0, 9]).save(file)
    spoil(file)
    session = opened(mini, row, [0, 3])
    before = session.snapshot()
    with pytest.raises((ValueError, OSError), match=message):
        session.load(file)
    assert session.snapshot().now is before.now


def test_state_of_other_weights_or_another_config_is_refused(mini, tmp_path):
    opened(mini, tokens(9, vocab=50), [0, 9]).save(tmp_path / "a.state")
    torch.manual_seed(1)
    other = CausalLM(MINI)
    with torch.no_grad():
        dict(other.named_parameters())["layers.2.mlp.out_proj.weight"][0, 0] += 1e-6
    for model in (other, CausalLM(get_preset("gdn-nano"))):
        with pytest.raises(ValueError, match="is of another model, expected one of the same config and weights"):
            Session(model).load(tmp_path / "a.state")


def test_weights_are_looked_at_again_only_if_they_changed(tmp_path, monkeypatch):
    digests, of_weights = [], session_file.digest_of_model
    monkeypatch.setattr(session_file, "digest_of_model", lambda *args: digests.append(1) or of_weights(*args))
    model = CausalLM(MINI)
    session = opened(model, tokens(9, vocab=50), [0, 9])
    for one in (session, session, session.fork()):
        one.save(tmp_path / "a.state")
        one.load(tmp_path / "a.state")
    assert len(digests) == 1
    with torch.no_grad():
        model.norm.weight[0] += 1
    with pytest.raises(ValueError, match="is of another model"):
        session.load(tmp_path / "a.state")
    model.norm.weight = torch.nn.Parameter(torch.ones(12))
    session.load(tmp_path / "a.state")
    assert len(digests) == 3


def test_failed_save_leaves_the_old_file(mini, tmp_path, monkeypatch):
    row = tokens(9, vocab=50)
    old = opened(mini, row, [0, 5])
    old.save(tmp_path / "a.state")
    monkeypatch.setattr(session_file, "save_file", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        opened(mini, row, [0, 9]).save(tmp_path / "a.state")
    again = Session(mini)
    again.load(tmp_path / "a.state")
    assert_same(again, old)
    assert [file.name for file in tmp_path.iterdir()] == ["a.state"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda session: session.append(tokens(2, 3, vocab=50)), r"tokens is \[2, 3\], expected 1 sequences"),
        (lambda session: session.append(torch.zeros(0, dtype=torch.int64)), r"tokens is \[0\], expected"),
        (lambda session: session.append(torch.tensor(3)), r"tokens is \[\], expected"),
        (lambda session: session.append(torch.tensor([50])), "tokens holds 50, expected 0 to 49"),
        (lambda session: session.append(torch.zeros(3)), "tokens is torch.float32"),
        (lambda session: Session(session.model).save("unused"), "the session is empty"),
        (lambda session: Session(session.model, keep=-1), "keep is -1, expected a whole number"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(mini, call, message):
    session = opened(mini, tokens(9, vocab=50), [0, 9])
    before = session.snapshot()
    with pytest.raises(ValueError, match=message):
        call(session)
    assert session.snapshot().now is before.now
