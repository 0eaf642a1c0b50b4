"""How large the models are, and how long they learn: what a laptop can do, and what the paper did."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """What all text models have in common."""

    size: str  # of the presets
    vocab_size: int
    tokens: int
    length: int
    batch_tokens: int
    peak_lr: float
    rates: tuple[tuple[str, float], ...] = ()  # of systems that learn best at another
    limit: int = 200  # questions of each set
    recipe: str | None = None  # of the paper, with torchrun; None: in this process, one thread
    seeds: int | None = None  # at most; None: as many as claims need

    def rate(self, system: str) -> float:
        return dict(self.rates).get(system, self.peak_lr)


QUICKER = {  # than Gated DeltaNet and others, by the pilot
    8e-3: ("hgrn2", "mamba", "deltanet", "transformer", "gdn-h2", "gdn-swa-mamba2", "gdn-mamba2-swa", "mamba2-swa-gdn"),
    16e-3: ("mamba2", "mamba2-matched"),
}
RATES = tuple((system, rate) for rate, names in QUICKER.items() for system in names)
LAPTOP = Scale("nano", 2048, tokens=4_000_000, length=512, batch_tokens=4096, peak_lr=4e-3, rates=RATES)
SCALES = {
    "laptop": LAPTOP,
    "400m": Scale("400m", 32000, 15 * 10**9, 4096, 524_288, 4e-4, recipe="paper-400m", seeds=1),
    "1.3b": Scale("1.3b", 32000, 100 * 10**9, 4096, 524_288, 4e-4, recipe="paper-1.3b", seeds=1),
}
