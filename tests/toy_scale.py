"""What tests of cells share: a scale at which a run takes a second, and no other processes."""

from concurrent.futures import ThreadPoolExecutor

from gated_deltanet.reproduce.scales import Scale

TOY = Scale("nano", 300, tokens=2048, length=256, batch_tokens=512, peak_lr=4e-3, limit=2)
STORY = "It was a dark night. The wind blew over the hills. Nobody spoke a word. "


def here(jobs, mp_context):
    """Instead of other processes, which would not know of what a test has changed."""
    return ThreadPoolExecutor(1)
