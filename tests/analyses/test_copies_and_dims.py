"""Second copies of the parameters, and sizes as products."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapana.analyses.categories import categorise
from snapana.analyses.copies import copies
from snapana.analyses.dims import as_product, parse_dims
from snapana.errors import SnapanaError
from tests.analyses.test_categories import STACKS, Training
from tests.conftest import load_sample

MIB = 2**20
SIZES = [3 * MIB, 3 * MIB, 5 * MIB, 70_000, 1_000_000]


@pytest.mark.parametrize(("scale", "word"), [(1, "same"), (0.5, "half"), (2, "twice")])
def test_a_second_copy_is_told_by_its_sizes(scale: float, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STACKS, "average", [])
    history = Training()
    for size in SIZES:
        history.alloc(size, "build")
    history.free(history.alloc(MIB, "layer"))
    for size in SIZES:
        history.alloc(int(size * scale), "average")
    snapshot = history.snapshot()
    (found,) = copies(snapshot, 0, len(history.events) - 1, categorise(snapshot, 0))
    assert (found.scale, found.bytes) == (scale, sum(int(size * scale) for size in SIZES))
    assert word in found.precision
    assert found.site.endswith(" average")


@pytest.mark.parametrize("name", ["train_adam", "hf_lora", "llm_oom", "ddp_rank2", "leak_hook"])
def test_gradients_and_optimizer_state_are_no_copies(name: str) -> None:
    snapshot = load_sample(name)
    assert copies(snapshot, 0, snapshot.replay[0].peak_event(), categorise(snapshot, 0)) == []


def test_the_block_that_failed_is_a_product() -> None:
    dims = parse_dims("vocab=32000, hidden=2048, seq=1024")
    assert as_product(4_718_592_000, dims) == "72 x seq 1,024 x vocab 32,000 x 2 bytes"
    assert as_product(2048 * 2048 * 4, dims) == "hidden 2,048 x hidden 2,048 x 4 bytes"
    assert as_product(7, dims) is None


DIMS = {"vocab": 32000, "hidden": 2048, "seq": 1024, "heads": 12}


@given(
    st.lists(st.sampled_from(sorted(DIMS)), min_size=1, max_size=3), st.integers(1, 60), st.sampled_from([1, 2, 4, 8])
)
def test_products_multiply_to_the_size(names: list[str], batch: int, element: int) -> None:
    size = prod(DIMS[name] for name in names) * batch * element
    written = as_product(size, DIMS)
    assert written is not None
    factors = [
        int(part.replace("bytes", "").replace("byte", "").replace(",", "").split()[-1]) for part in written.split(" x ")
    ]
    assert prod(factors) == size


@pytest.mark.parametrize("text", ["", "vocab", "vocab=", "vocab=x", "=3", "vocab=0", "a=1,,b=2"])
def test_what_is_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(SnapanaError) as error:
        parse_dims(text)
    assert error.value.code == "usage.dims"
