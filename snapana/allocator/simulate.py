"""What the caching allocator would do: a model of ``DeviceCachingAllocator`` of c10/cuda/CUDACachingAllocator.cpp.

One device. Memory comes from segments, blocks are cut from them, free ones are kept by (pool id, size class,
stream) and reused best fit. Where the driver puts a new segment is a parameter: it decides ties only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from snapana.allocator.driver import Upwards
from snapana.allocator.rounding import LARGE_SEGMENT, SMALL_BUFFER, SMALL_SIZE, Rounding, segment_size
from snapana.allocator.settings import AllocatorSettings

Place = Callable[[int], int]

DEFAULT_POOL = (0, 0)
# Address space reserved for one expandable segment; 9/8 of a card, rounded, would do.
RESERVATION = 256 * 1024**3
# No card has more; addresses are not endless either.
_MOST = 16 * 1024**4
_FIRST_RESERVATION = 0x1000_0000_0000


class SimulatedOutOfMemoryError(Exception):
    """The request does not fit, after all that the allocator tries."""

    def __init__(self, requested: int) -> None:
        super().__init__(f"{requested} bytes do not fit")
        self.requested = requested


@dataclass(frozen=True)
class SimulatedEvent:
    """One entry of the trace, as a snapshot holds it: sizes as requested for blocks, actual for segments."""

    action: str
    addr: int
    size: int
    stream: int
    pool: tuple[int, int]


class Block:
    """A stretch of a segment: allocated, pending, free, or not mapped."""

    __slots__ = (
        "addr",
        "age",
        "allocated",
        "base",
        "expandable",
        "mapped",
        "next",
        "pending",
        "pool",
        "prev",
        "requested",
        "size",
        "stream",
    )

    def __init__(self, addr: int, size: int, stream: int, pool: _Pool, *, expandable: bool, base: int) -> None:
        self.addr = addr
        self.size = size
        self.stream = stream
        self.pool = pool
        self.expandable = expandable
        # Start of the reservation or segment: pages are counted from here.
        self.base = base
        self.mapped = True
        self.requested = 0
        self.allocated = False
        self.pending = False
        self.age = 0
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing uses it, mapped or not."""
        return not self.allocated and not self.pending

    @property
    def room(self) -> int:
        """Bytes that the block has, or could have by mapping what follows it."""
        if self.expandable and self.next is not None and not self.next.mapped:
            return self.size + self.next.size
        return self.size


class _Shelf:
    """Free blocks of one stream, by size and address."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._block: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        insort(self._keys, (block.size, block.addr))
        self._block[block.addr] = block

    def remove(self, block: Block) -> None:
        del self._keys[bisect_left(self._keys, (block.size, block.addr))]
        del self._block[block.addr]

    def at_least(self, size: int) -> Iterator[Block]:
        """Give blocks of ``size`` bytes or more, smallest first; the shelf must not change meanwhile."""
        for position in range(bisect_left(self._keys, (size, 0)), len(self._keys)):
            yield self._block[self._keys[position][1]]

    def best(self, size: int) -> Block | None:
        """Give the smallest block of ``size`` bytes or more."""
        position = bisect_left(self._keys, (size, 0))
        return self._block[self._keys[position][1]] if position < len(self._keys) else None

    def below(self, size: int) -> list[Block]:
        """Give blocks smaller than ``size``, largest first."""
        return [self._block[addr] for _, addr in reversed(self._keys[: bisect_left(self._keys, (size, 0))])]

    def all(self) -> list[Block]:
        return [self._block[addr] for _, addr in self._keys]


class _Pool:
    """Free memory of one pool id and size class (``BlockPool``)."""

    def __init__(self, pool_id: tuple[int, int], *, small: bool) -> None:
        self.id = pool_id
        self.small = small
        self.page = SMALL_BUFFER if small else LARGE_SEGMENT
        self.free: dict[int, _Shelf] = {}
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}
        # Searches so far: the age of a free block is counted in them.
        self.searches = 0

    def shelve(self, block: Block) -> None:
        block.age = self.searches
        shelf = self.free.get(block.stream)
        if shelf is None:
            shelf = self.free[block.stream] = _Shelf()
        shelf.add(block)

    def take(self, block: Block) -> None:
        self.free[block.stream].remove(block)

    def note_unmapped(self, block: Block) -> None:
        holes = self.unmapped.setdefault(block.stream, [])
        holes.insert(bisect_left(holes, block.addr, key=lambda hole: hole[0]), (block.addr, block))

    def forget_unmapped(self, block: Block) -> None:
        holes = self.unmapped[block.stream]
        del holes[bisect_left(holes, block.addr, key=lambda hole: hole[0])]

    def in_order(self) -> list[Block]:
        """Give all free blocks by stream, size and address."""
        return [block for stream in sorted(self.free) for block in self.free[stream].all()]


class Simulator:
    """Allocates and frees as PyTorch would.

    Args:
        settings: allocator settings.
        rounding: how requests are rounded; by default that of the settings.
        place: gives the address of a new segment of so many bytes; by default ever higher ones.
        reserve: likewise for the address range of an expandable segment.
        release: told address and size of each segment that is given back.
        limit: bytes that may be reserved; None for no limit.
        record: called with every event; None, which is quicker, for no events.

    Attributes:
        allocated: bytes, now; likewise ``active``, ``requested`` and ``reserved``.
        peak_reserved: the most that was reserved so far.
        segments_made: segments taken from the driver, or ranges mapped.
        segments_freed: given back, or unmapped.
        retries: requests for which the cache was released.
        live: blocks in use or pending, by address.

    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        rounding: Rounding | None = None,
        place: Place | None = None,
        reserve: Place | None = None,
        release: Callable[[int, int], None] = lambda addr, size: None,
        limit: int | None = None,
        record: Callable[[SimulatedEvent], None] | None = None,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.rounding = rounding or Rounding(self.settings.roundup_power2_divisions)
        self._place = place or Upwards().place
        self._reserve = reserve or Upwards(_FIRST_RESERVATION).place
        self._released = release
        self._record = record
        self.limit = limit
        self.allocated = self.active = self.requested = self.reserved = 0
        self.peak_reserved = self.segments_made = self.segments_freed = self.retries = 0
        self.live: dict[int, Block] = {}
        self._pools: dict[tuple[tuple[int, int], bool], _Pool] = {}
        # First block of each segment or reservation, by its address.
        self._heads: dict[int, Block] = {}
        # Requests repeat.
        self._rounded: dict[int, int] = {}

    def change(self, settings: AllocatorSettings, rounding: Rounding) -> None:
        """Go on under other settings, as after ``torch.cuda.memory._set_allocator_settings``."""
        self.settings, self.rounding = settings, rounding
        self._rounded.clear()

    # ---- what a program does

    def malloc(self, size: int, stream: int = 0, pool: tuple[int, int] = DEFAULT_POOL) -> int:
        """Allocate; give the address.

        Raises:
            SimulatedOutOfMemoryError: nothing that the allocator tries makes room.
            ValueError: for a size below 1, for which PyTorch does not ask the allocator.

        """
        if size < 1:
            raise ValueError("PyTorch does not allocate empty tensors")
        rounded = self._rounded.get(size)
        if rounded is None:
            rounded = self._rounded[size] = self.rounding.round_size(size)
        own = self._pool(pool, small=rounded <= SMALL_SIZE)
        block = self._find(own, rounded, stream) or self._make_room(own, rounded, stream)
        if block is None:
            self._tell("oom", 0, rounded, stream, pool)
            raise SimulatedOutOfMemoryError(rounded)
        if self._splits(block, rounded):
            self._split(block, rounded)
        block.allocated = True
        block.requested = size
        self.live[block.addr] = block
        self.allocated += block.size
        self.active += block.size
        self.requested += size
        if self._record is not None:
            self._tell("alloc", block.addr, size, stream, pool)
        return block.addr

    def free(self, addr: int) -> None:
        """Free a block that no other stream uses."""
        self.free_requested(addr)
        self.free_completed(addr)

    def free_requested(self, addr: int) -> None:
        """Free a block that another stream may still use: it stays active."""
        block = self.live[addr]
        block.allocated, block.pending = False, True
        self.allocated -= block.size
        if self._record is not None:
            self._tell("free_requested", addr, block.requested, block.stream, block.pool.id)

    def free_completed(self, addr: int) -> None:
        """Give a pending block back to its pool: the other streams are done."""
        block = self.live.pop(addr)
        block.pending = False
        self.active -= block.size
        self.requested -= block.requested
        if self._record is not None:
            self._tell("free_completed", addr, block.requested, block.stream, block.pool.id)
        self._put_back(block)

    def empty_cache(self) -> None:
        """Give all wholly free segments and pages of the default pool back to the driver."""
        for small in (False, True):
            pool = self._pools.get((DEFAULT_POOL, small))
            for block in pool.in_order() if pool else ():
                self._release(block)

    # ---- what it looks like

    def segments(self) -> Iterator[list[Block]]:
        """Give the blocks of each segment in order; of expandable ones per contiguous mapped range."""
        for base in sorted(self._heads):
            run: list[Block] = []
            block: Block | None = self._heads[base]
            while block is not None:
                if block.mapped:
                    run.append(block)
                elif run:
                    yield run
                    run = []
                block = block.next
            if run:
                yield run

    # ---- accounts

    def _tell(self, action: str, addr: int, size: int, stream: int, pool: tuple[int, int]) -> None:
        if self._record is not None:
            self._record(SimulatedEvent(action, addr, size, stream, pool))

    def _grown(self, action: str, block: Block, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.segments_made += 1
        self._tell(action, block.addr, size, block.stream, block.pool.id)

    def _shrunk(self, action: str, block: Block) -> None:
        self.reserved -= block.size
        self.segments_freed += 1
        self._tell(action, block.addr, block.size, block.stream, block.pool.id)

    # ---- searching and making room

    def _pool(self, pool_id: tuple[int, int], *, small: bool) -> _Pool:
        key = (pool_id, small)
        found = self._pools.get(key)
        if found is None:
            found = self._pools[key] = _Pool(pool_id, small=small)
        return found

    def _find(self, pool: _Pool, size: int, stream: int) -> Block | None:
        """Take the best free block (``get_free_block``)."""
        pool.searches += 1
        shelf = pool.free.get(stream)
        if shelf is None:
            return None
        block = shelf.best(size)
        if block is not None and block.expandable:
            candidates = shelf.at_least(size)
            block = self._best_expandable(next(candidates), candidates)
        if block is None or self._oversize(block, size):
            return None
        pool.take(block)
        return block

    def _best_expandable(self, block: Block, candidates: Iterator[Block]) -> Block | None:
        """Prefer blocks that cannot grow; without the setting, ordinary ones only."""
        if not self.settings.expandable_segments:
            return next((one for one in candidates if not one.expandable), None)
        for one in candidates:
            if not one.expandable or one.room >= block.room:
                break
            block = one
        return block

    def _oversize(self, block: Block, size: int) -> bool:
        """Keep large blocks whole for large requests (``max_split_size``)."""
        limit = self.settings.max_split_size
        if limit is None:
            return False
        if size < limit:
            return block.size >= limit
        return block.size >= size + self.settings.max_non_split_rounding

    def _make_room(self, pool: _Pool, size: int, stream: int) -> Block | None:
        """Ask the driver, releasing more and more of the cache."""
        if self.limit is not None and self.settings.garbage_collection_threshold > 0:
            self._collect_garbage()
        block = self._new(pool, size, stream)
        if block is None and self.settings.max_split_size is not None and self._release_oversize(pool, size, stream):
            block = self._new(pool, size, stream)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._new(pool, size, stream)
        return block

    def _new(self, pool: _Pool, size: int, stream: int) -> Block | None:
        """Get a block from the driver (``alloc_block``); None over the limit."""
        wanted = segment_size(size, self.settings.large_segment_size)
        if self.reserved + wanted > (_MOST if self.limit is None else min(self.limit, _MOST)):
            return None
        if self.settings.expandable_segments:
            return self._grow(pool, size, stream)
        addr = self._place(wanted)
        block = Block(addr, wanted, stream, pool, expandable=False, base=addr)
        self._heads[addr] = block
        self._grown("segment_alloc", block, wanted)
        return block

    # ---- splitting and merging

    def _splits(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.small or self.settings.expandable_segments:
            return rest >= 512
        limit = self.settings.max_split_size
        return rest > SMALL_SIZE and (limit is None or size < limit)

    def _split(self, block: Block, size: int) -> None:
        """Cut the low part off for the request, shelve the rest."""
        rest = Block(
            block.addr + size, block.size - size, block.stream, block.pool, expandable=block.expandable, base=block.base
        )
        _link(block, rest)
        block.size = size
        block.pool.shelve(rest)

    def _put_back(self, block: Block) -> None:
        """Merge with free neighbours and shelve (``free_block``)."""
        for other in (block.prev, block.next):
            if other is not None and other.is_free and other.mapped == block.mapped:
                if other.mapped:
                    other.pool.take(other)
                else:
                    other.pool.forget_unmapped(other)
                self._absorb(block, other)
        if block.mapped:
            block.pool.shelve(block)
        else:
            block.pool.note_unmapped(block)

    def _absorb(self, block: Block, other: Block) -> None:
        if other is block.prev:
            if self._heads.get(other.addr) is other:
                self._heads[other.addr] = block
            block.addr = other.addr
            block.prev = other.prev
            if block.prev is not None:
                block.prev.next = block
        else:
            block.next = other.next
            if block.next is not None:
                block.next.prev = block
        block.size += other.size

    # ---- giving back

    def _release(self, block: Block) -> int:
        """Give a free block back if it is a whole segment, or its whole pages; give the bytes."""
        if block.expandable:
            return self._unmap(block)
        if block.prev is not None or block.next is not None:
            return 0
        block.pool.take(block)
        del self._heads[block.addr]
        self._shrunk("segment_free", block)
        self._released(block.addr, block.size)
        return block.size

    def _release_oversize(self, pool: _Pool, size: int, stream: int) -> bool:
        """Free oversize blocks of the stream until the request would fit (``release_available_cached_blocks``)."""
        limit = self.settings.max_split_size
        shelf = pool.free.get(stream)
        if limit is None or shelf is None:
            return False
        wanted = max(size, limit)
        fitting = next((block for block in shelf.at_least(wanted) if not block.expandable), None)
        if fitting is not None:
            return self._release(fitting) > 0
        released = 0
        for block in shelf.below(wanted):
            if released >= wanted or block.size < limit:
                break
            if not block.expandable:
                released += self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Free old segments of the large pool until below the threshold (``garbage_collect_cached_blocks``)."""
        pool = self._pools.get((DEFAULT_POOL, False))
        if pool is None or self.limit is None:
            return
        threshold = int(self.settings.garbage_collection_threshold * self.limit)
        excess = self.reserved - threshold
        while excess > 0:
            whole = [one for one in pool.in_order() if not one.expandable and one.prev is None and one.next is None]
            if not whole:
                return
            average = sum(pool.searches - one.age for one in whole) / len(whole)
            for one in whole:
                if pool.searches - one.age >= average:
                    excess -= self._release(one)

    # ---- expandable segments

    def _grow(self, pool: _Pool, size: int, stream: int) -> Block:
        """Map pages until a free block holds ``size`` (``try_allocate_expandable_block``)."""
        block = self._expandable_start(pool, size, stream)
        if not block.mapped:
            block = self._map(block, min(block.size, size))
        while block.size < size:
            following = block.next
            assert following is not None, "a chain with room was chosen"
            block = self._map(following, min(size - block.size, following.size))
        pool.take(block)
        return block

    def _expandable_start(self, pool: _Pool, size: int, stream: int) -> Block:
        """Find the first chain of free and unmapped blocks with room, or reserve more addresses."""
        for _, hole in pool.unmapped.get(stream, ()):
            before = hole.prev
            start = before if before is not None and before.is_free and before.mapped else hole
            room, block = 0, start
            while block.is_free:
                room += block.size
                if room >= size:
                    return start
                if block.next is None:
                    break
                block = block.next
        base = self._reserve(max(RESERVATION, size))
        fresh = Block(
            base, max(RESERVATION, -(-size // pool.page) * pool.page), stream, pool, expandable=True, base=base
        )
        fresh.mapped = False
        self._heads[base] = fresh
        pool.note_unmapped(fresh)
        return fresh

    def _map(self, hole: Block, size: int) -> Block:
        """Map whole pages from the start of an unmapped block; give the free block that results (``map_block``)."""
        pool = hole.pool
        mapped = min(-(-size // pool.page) * pool.page, hole.size)
        pool.forget_unmapped(hole)
        if mapped < hole.size:
            rest = Block(hole.addr + mapped, hole.size - mapped, hole.stream, pool, expandable=True, base=hole.base)
            rest.mapped = False
            _link(hole, rest)
            hole.size = mapped
            pool.note_unmapped(rest)
        hole.mapped = True
        self._grown("segment_map", hole, mapped)
        self._put_back(hole)
        return hole

    def _unmap(self, block: Block) -> int:
        """Unmap the pages that lie wholly in a free block; what sticks out stays mapped (``unmap_block``)."""
        page = block.pool.page
        low = block.base + -(-(block.addr - block.base) // page) * page
        high = block.base + (block.addr + block.size - block.base) // page * page
        if high <= low:
            return 0
        block.pool.take(block)
        for cut in (low - block.addr, high - low):
            if 0 < cut < block.size:
                rest = Block(
                    block.addr + cut, block.size - cut, block.stream, block.pool, expandable=True, base=block.base
                )
                _link(block, rest)
                block.size = cut
                if block.addr < low:
                    block.pool.shelve(block)
                    block = rest
                else:
                    block.pool.shelve(rest)
        block.mapped = False
        size = block.size
        self._shrunk("segment_unmap", block)
        self._put_back(block)
        return size


def _link(block: Block, rest: Block) -> None:
    """Put ``rest`` behind ``block``."""
    rest.prev, rest.next = block, block.next
    if rest.next is not None:
        rest.next.prev = rest
    block.next = rest
