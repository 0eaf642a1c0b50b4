"""Gated DeltaNet: the gated delta rule, its chunkwise training algorithm, and the models built on it."""
