"""What PyTorch's out-of-memory message says by itself."""

from __future__ import annotations

from dataclasses import dataclass

from snapana.message import OomMessage
from snapana.units import format_bytes


@dataclass(frozen=True)
class Explanation:
    """What a message says by itself.

    Attributes:
        message: its figures.
        verdict: one of ``VERDICTS``.
        reasons: sentences that argue for it.

    """

    message: OomMessage
    verdict: str
    reasons: tuple[str, ...]


def explain_message(message: OomMessage) -> Explanation:
    """Judge by the message alone: whether holes or pools could have served the request it cannot say."""
    reasons = [f"{format_bytes(message.requested)} was asked of the driver."]
    verdict = _message_verdict(message)
    cached = None
    if message.reserved is not None and message.allocated is not None:
        cached = message.reserved - message.allocated
        reasons.append(
            f"PyTorch held {format_bytes(message.reserved)}: {format_bytes(message.allocated)} in tensors, "
            f"{format_bytes(cached)} free."
        )
    if message.private_free:
        reasons.append(
            f'The {format_bytes(message.private_free)} "allocated in private pools" are free blocks of those pools: '
            f"the message counts them into its {format_bytes(message.printed_allocated)}; nothing uses them."
        )
    if cached is not None and cached - (message.private_free or 0) < message.requested:
        reasons.append("The free part is smaller than the request: this is not fragmentation.")
    elif cached is not None:
        reasons.append(
            "The free part is larger than the request: whether its holes, or another stream's segments, kept it from "
            "fitting, only a memory snapshot tells."
        )
    if message.allowed is not None:
        reasons.append(f"A limit of {format_bytes(message.allowed)} was set on PyTorch.")
    if message.free is not None:
        enough = "enough" if message.free >= message.requested else "too little"
        reasons.append(f"The driver had {format_bytes(message.free)} free: {enough}.")
    if message.outside is not None:
        reasons.append(
            f"{format_bytes(message.outside)} of this process lies outside PyTorch; other processes had "
            f"{format_bytes(message.others_total)}."
        )
    elif message.capacity is not None and message.free is not None and message.reserved is not None:
        rest = max(0, message.capacity - message.free - message.reserved)
        reasons.append(f"{format_bytes(rest)} of the card is neither PyTorch's nor free.")
    return Explanation(message, verdict, tuple(reasons))


def _message_verdict(message: OomMessage) -> str:
    private = message.private_free or 0
    if message.reserved is not None and message.allocated is not None:
        if message.reserved - message.allocated - private >= message.requested:
            return "unknown"
        if private >= message.requested:
            return "stranded_pool"
        if message.allowed is not None and message.reserved + message.requested > message.allowed:
            return "limit"
    if message.free is None:
        return "limit" if message.allowed is not None else "unknown"
    if message.free >= message.requested:
        # Until 2.0 a limit was not always printed.
        return "driver_refused" if message.allowed is None and message.process is not None else "limit"
    others, outside = message.others_total, message.outside
    if others is None or outside is None:
        rest = (message.capacity or 0) - message.free - (message.reserved or 0)
        return "unknown" if message.free + rest >= message.requested else "capacity"
    if message.free + others + outside < message.requested:
        return "capacity"
    return "other_processes" if others > outside else "outside_allocator"
