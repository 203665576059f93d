"""What is said of one failed allocation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from snapana.analyses.fragmentation import Fragmentation
from snapana.analyses.peak import Peak
from snapana.message import OomMessage, find_messages
from snapana.snapshot.model import Snapshot
from snapana.snapshot.sidecar import SidecarDevice
from snapana.snapshot.stacks import Site

VERDICTS = (
    "fragmentation",
    "stranded_pool",
    "limit",
    "driver_refused",
    "other_processes",
    "outside_allocator",
    "capacity",
    "unknown",
)


@dataclass(frozen=True)
class Facts:
    """What is known besides the snapshot.

    Attributes:
        limit: the most that PyTorch may reserve, in bytes.
        card: the card's size in bytes.
        messages: out-of-memory messages of the run.
        devices: what the recorder knew of each device.

    """

    limit: int | None = None
    card: int | None = None
    messages: tuple[OomMessage, ...] = ()
    devices: tuple[SidecarDevice, ...] = ()

    def card_of(self, device: int) -> int | None:
        """Give the size of a device's card: as told, as recorded, or as the last message of the device prints it."""
        recorded = self._recorded(device)
        if self.card is not None or recorded is not None:
            return self.card if self.card is not None or recorded is None else recorded.total
        own = (one.capacity for one in reversed(self.messages) if one.device in {None, device})
        return next((size for size in own if size is not None), None)

    def limit_of(self, device: int) -> int | None:
        """Give the most that PyTorch may reserve on a device: as told, else as recorded."""
        recorded = self._recorded(device)
        return self.limit if self.limit is not None or recorded is None else recorded.limit

    def knows_limit(self, device: int) -> bool:
        """Whether it is recorded what limit was set, if any."""
        recorded = self._recorded(device)
        return recorded is not None and recorded.limit_known

    def _recorded(self, device: int) -> SidecarDevice | None:
        return next((one for one in self.devices if one.device == device), None)


def all_facts(snapshot: Snapshot, told: Facts | None) -> Facts:
    """Add to what is told what stands in the file's sidecar."""
    facts = told or Facts()
    sidecar = snapshot.sidecar
    if sidecar is None or facts.devices:
        return facts
    messages = facts.messages or tuple(find_messages(sidecar.message or ""))
    return replace(facts, devices=sidecar.devices, messages=messages)


@dataclass(frozen=True)
class Change:
    """One thing to change.

    Attributes:
        what: a sentence.
        bytes: what it brings, or by how much it has to be changed; None where bytes do not measure it.
        enough: whether it alone makes the request fit.

    """

    what: str
    bytes: int | None
    enough: bool


@dataclass(frozen=True)
class OutOfMemory:
    """One failed allocation.

    Attributes:
        device: ordinal.
        event: index in the device's trace.
        time_us: microseconds since the epoch, None if not recorded.
        requested: bytes asked for, rounded by the allocator.
        segment: bytes that the allocator asked the driver for.
        site: who asked.
        stack: its stack id, -1 if none.
        small: whether the request belongs to the small pool.
        stream: the request's stream.
        pool: the request's pool, as index; what is most likely where it was not recorded.
        pool_recorded: whether it was, or there is only one.
        fatal: nothing was allocated on the device after it.
        allocated: bytes allocated at that moment.
        active: bytes active.
        reserved: bytes reserved.
        own_free: free bytes in the pool, stream and size class of the request.
        largest_hole: the largest contiguous one of them.
        pool_held: free bytes in wholly free segments of private pools that the request may not use.
        other_streams: other free bytes that the request may not use and that blocks keep: of other streams or pools.
        releasable: free bytes that ``empty_cache()`` would have released.
        device_free: bytes that the driver had free, None if not recorded.
        released_before: bytes that PyTorch gave back to the driver for this request.
        limit: the most that PyTorch may reserve, None if not known.
        limit_low: PyTorch may reserve at least this much, where a limit is inferred.
        limit_high: and less than this.
        card: the card's size, None if not known.
        others: bytes of other processes, None if not known.
        outside: bytes of this process outside of PyTorch's allocator, None if not known.
        not_pytorch: both together, None if not known.
        message: PyTorch's message of this failure, where one was given.
        verdict: one of ``VERDICTS``.
        reasons: sentences that argue for it, with their figures.
        changes: what would make the request fit, the simplest first; empty for old failures of many.
        live: what was allocated, by site.
        cache: fragmentation at that moment; None for old failures of many.

    """

    device: int
    event: int
    time_us: int | None
    requested: int
    segment: int
    site: Site
    stack: int
    small: bool
    stream: int
    pool: int
    pool_recorded: bool
    fatal: bool
    allocated: int
    active: int
    reserved: int
    own_free: int
    largest_hole: int
    pool_held: int
    other_streams: int
    releasable: int
    device_free: int | None
    released_before: int
    limit: int | None
    limit_low: int | None
    limit_high: int | None
    card: int | None
    others: int | None
    outside: int | None
    not_pytorch: int | None
    message: OomMessage | None
    verdict: str
    live: Peak
    reasons: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    cache: Fragmentation | None = None

    @property
    def room(self) -> int | None:
        """Bytes of the largest segment that surely could have been had; None if not known."""
        if self.device_free is None:
            return None
        limit = self.limit if self.limit is not None else self.limit_low
        return self.device_free if limit is None else max(0, min(self.device_free, limit - self.reserved))
