"""The whole card at one instant: who holds which part of it, up to its size."""

from __future__ import annotations

from dataclasses import dataclass

from snapana.analyses.categories import Categories
from snapana.analyses.failure import Facts, OutOfMemory
from snapana.analyses.fragmentation import Fragmentation


@dataclass(frozen=True)
class CardPart:
    """A part of the card.

    Attributes:
        key: what it is, stable: ``live``, ``pending``, ``holes``, ``other_streams``,
            ``releasable``, ``pool_held``, ``outside``, ``other_processes``, ``driver_free``, ``not_pytorch`` (the
            last three, not told apart) or ``unknown``.
        name: what people read; of ``live`` the category.
        bytes: its size, None if not known.
        hint: what would tell, where something is not known.

    """

    key: str
    name: str
    bytes: int | None
    hint: str = ""


@dataclass(frozen=True)
class CardUse:
    """The card, part by part.

    Attributes:
        at: name of the instant.
        event: index of its event.
        capacity: the card's size, None if not known; the parts sum to it.
        reserved: what PyTorch holds: the sum of the parts up to ``pool_held``.
        parts: in order, none of them empty.

    """

    at: str
    event: int
    capacity: int | None
    reserved: int
    parts: tuple[CardPart, ...]


def card_use(
    cache: Fragmentation, live: Categories, facts: Facts, failure: OutOfMemory | None = None, device: int = 0
) -> CardUse:
    """Divide the card.

    Args:
        cache: fragmentation at the instant.
        live: what was allocated then, by category.
        facts: what is known besides the file.
        failure: the failed allocation of the instant, if it is one: it knows what the driver had left.
        device: ordinal.

    """
    capacity = failure.card if failure is not None else facts.card_of(device)
    if capacity is not None:
        capacity = max(capacity, cache.reserved)
    parts = [*_live(cache, live), *_cached(cache, 0 if failure is None else failure.stream, failure is not None)]
    if failure is not None and failure.device_free is not None:
        parts += _outside(failure, capacity)
    elif capacity is not None:
        hint = "PyTorch's message (--message) tells them apart"
        parts.append(CardPart("not_pytorch", "free, libraries or other processes", capacity - cache.reserved, hint))
    else:
        parts.append(CardPart("unknown", "the rest of the card", None, "--card SIZE or --message tells"))
    kept = tuple(part for part in parts if part.bytes is None or part.bytes > 0)
    return CardUse(cache.at, cache.event, capacity, cache.reserved, kept)


def _live(cache: Fragmentation, live: Categories) -> list[CardPart]:
    parts = [CardPart("live", name, size) for name, size in live.bytes.items()]
    return [*parts, CardPart("pending", "waiting for another stream", cache.active - cache.allocated)]


def _cached(cache: Fragmentation, stream: int, failed: bool) -> list[CardPart]:
    """Divide what is free within PyTorch, by whether it can serve the stream."""
    pools = cache.pools
    private = pools["pool"] != 0
    main = stream if failed or not len(pools) else int(pools["stream"].iloc[0])
    own = ~private & (pools["stream"] == main)
    others = int(pools["free"][~private & ~own].sum())
    holes = int(pools["unreleasable"][own | private].sum())
    return [
        CardPart("holes", "holes between live blocks", holes),
        CardPart("other_streams", "cached for other streams", others),
        CardPart("pool_held", "held by private pools", cache.pool_held),
        CardPart("releasable", "cached, releasable", cache.cached - holes - others - cache.pool_held),
    ]


def _outside(failure: OutOfMemory, capacity: int | None) -> list[CardPart]:
    free = CardPart("driver_free", "free with the driver", failure.device_free)
    if capacity is None or failure.not_pytorch is None:
        return [free, CardPart("unknown", "outside PyTorch", None, "--card SIZE or --message tells")]
    if failure.others is None:
        hint = "PyTorch's full message (--message) tells them apart"
        return [
            CardPart("not_pytorch", "this process outside PyTorch, and other processes", failure.not_pytorch, hint),
            free,
        ]
    others = min(failure.others, failure.not_pytorch)
    return [
        CardPart("outside", "this process outside PyTorch", failure.not_pytorch - others),
        CardPart("other_processes", "other processes", others),
        free,
    ]
