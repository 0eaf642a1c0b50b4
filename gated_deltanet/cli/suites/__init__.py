"""The suites of `gdn eval`. Each fills the document with its results and says what to show of it."""

from . import commonsense, extrapolation, longbench, needle, recall, synthetic

SUITES = {
    "commonsense": commonsense.run,
    "extrapolation": extrapolation.run,
    "needle": needle.run,
    "recall": recall.run,
    "longbench": longbench.run,
    "synthetic": synthetic.run,
}
