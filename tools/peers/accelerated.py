"""A plugin for pytest: transformers is accelerated before any of its tests is read."""

import gated_deltanet

gated_deltanet.accelerate_transformers()
