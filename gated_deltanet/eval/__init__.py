"""Evaluation: the paper's benchmarks, from files or the hub, scored over our state or by lm-eval's own models.

`commonsense`, `recall` and `longbench` need lm-evaluation-harness (`pip install 'gated-deltanet[eval]'`); the other
suites need nothing more.
"""
