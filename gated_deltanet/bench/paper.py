"""What the paper measured: Fig. 3, training throughput of 1.3B models on one H100, from the figure's own data."""

SHAPES = ((2048, 16), (4096, 8), (8192, 4), (16384, 2))  # length, batch

# Thousands of tokens per second, by architecture (models/presets.py), in the order of SHAPES.
FIG_3 = {
    "transformer": (55.0, 47.6, 37.9, 26.5),
    "deltanet": (45.9, 45.6, 45.6, 45.2),
    "gdn": (46.1, 45.7, 45.8, 45.9),
    "mamba": (38.2, 38.1, 37.8, 37.6),
    "mamba2": (48.1, 48.2, 48.2, 48.1),
    "gdn-h1": (54.6, 53.4, 52.5, 52.5),
    "samba": (45.0, 44.0, 43.3, 42.8),
    "gdn-h2": (50.0, 49.6, 49.4, 49.0),
}
