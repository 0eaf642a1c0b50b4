import pytest

import gated_deltanet


@pytest.fixture(name="accelerated")
def in_the_test():
    with gated_deltanet.accelerate_transformers() as acceleration:
        yield acceleration
