"""Planted leaks among random honest traffic: how many are found, and how often honest traffic is accused."""

from __future__ import annotations

import random

from snapana.analyses.leaks import leaks
from snapana.analyses.steps import steps
from tests.builders import History

CASES = 500
MIB = 2**20


class Program:
    """A random training program: what it keeps is honest, but for the leak that may be planted."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.history = History()
        self.count = self.random.randint(24, 48)
        self.kept: dict[str, list[int]] = {}
        self.layers = self.random.randint(1, 3)
        self.batch = self.random.randint(1, 4) * 100_000
        self.habits = self.random.sample(
            [self.fill_cache, self.replace_cache, self.slide, self.linger, self.grow_within, self.log, self.collect],
            self.random.randint(2, 5),
        )
        self.capacity = self.random.randint(2, self.count // 3)
        self.life = self.random.uniform(1, 6)
        self.burst = self.random.randint(3, 7)
        # The line that leaks may also feed a queue.
        self.queue = self.random.choice([0, 0, 3])

    def run(self, plant: tuple[int, int, int, int] | None) -> History:
        """Run; ``plant`` is (first step, period, bytes, blocks) of a leak."""
        history = self.history
        for _ in range(self.layers):
            history.alloc(self.random.randint(1, 8) * MIB, "weights")
        for number in range(self.count):
            # Lengths differ from batch to batch, as those of sentences do.
            size = int(self.batch * self.random.uniform(0.5, 1.5))
            live = [history.alloc(size * (1 + layer), f"layer_{layer}") for layer in range(self.layers)]
            if number == 0:
                for _ in range(self.layers):
                    history.alloc(MIB, "optimizer_state")
            for habit in self.habits:
                habit(number)
            if plant and number >= plant[0] and (number - plant[0]) % plant[1] == 0:
                for _ in range(plant[3]):
                    history.alloc(plant[2], "leaky")
            if plant and self.random.random() < 0.5:
                # The line that leaks also does honest work.
                history.free(history.alloc(plant[2], "leaky"))
            if plant and self.queue:
                mine = self._keep("leaky", plant[2])
                if len(mine) > self.queue:
                    history.free(mine.pop(0))
            for addr in reversed(live):
                history.free(addr)
            history.step()
        return history

    def _keep(self, name: str, size: int) -> list[int]:
        mine = self.kept.setdefault(name, [])
        mine.append(self.history.alloc(size, name))
        return mine

    def fill_cache(self, number: int) -> None:
        if len(self.kept.get("fill", [])) < self.capacity:
            self._keep("fill", 300_000)

    def replace_cache(self, number: int) -> None:
        mine = self._keep("replace", self.random.randint(1000, 2 * MIB))
        if len(mine) > self.capacity:
            self.history.free(mine.pop(self.random.randrange(len(mine) - 1)))

    def slide(self, number: int) -> None:
        mine = self._keep("slide", MIB)
        if len(mine) > self.capacity:
            self.history.free(mine.pop(0))

    def linger(self, number: int) -> None:
        mine = self._keep("linger", self.random.randint(1000, MIB))
        for addr in list(mine):
            if self.random.random() < 1 / self.life:
                mine.remove(addr)
                self.history.free(addr)

    def grow_within(self, number: int) -> None:
        mine = [self.history.alloc(40_000, "keys_and_values") for _ in range(6)]
        for addr in mine:
            self.history.free(addr)

    def log(self, number: int) -> None:
        if number % 10 == 9:
            self.history.free(self.history.alloc(4, "metrics"))

    def collect(self, number: int) -> None:
        """Cycles that the garbage collector frees now and then."""
        mine = self._keep("cycles", 200_000)
        if number % self.burst == self.burst - 1:
            for addr in mine:
                self.history.free(addr)
            mine.clear()


def leaky_plan(program: Program) -> tuple[int, int, int, int]:
    """A leak of any size from a byte to 16 MiB, at every to every sixth step, from any step that leaves six growths."""
    chance = program.random
    period = chance.randint(1, 6)
    start = chance.randint(0, max(0, program.count - 6 * period - 4))
    return start, period, int(2 ** chance.uniform(0, 24)), chance.randint(1, 3)


def test_planted_leaks_are_found_and_honest_programs_are_not_accused() -> None:
    found = false = 0
    misses = []
    for seed in range(CASES):
        program = Program(seed)
        plan = leaky_plan(program)
        snapshot = program.run(plan).snapshot()
        table = leaks(snapshot, 0, steps(snapshot, 0)).table
        mine = table[table["function"] == "leaky"]
        want = plan[2] * plan[3] / plan[1]
        hit = len(mine) == 1 and abs(float(mine["bytes_per_step"].iloc[0]) / want - 1) <= 0.1
        found += hit
        if not hit:
            misses.append((seed, plan, mine[["bytes_per_step", "confidence"]].to_numpy().tolist()))
        honest = Program(CASES + seed).run(None).snapshot()
        accused = leaks(honest, 0, steps(honest, 0)).table
        false += bool(len(accused))
        if len(accused):
            misses.append((CASES + seed, accused[["function", "bytes_per_step"]].to_numpy().tolist()))
    print(f"{found} of {CASES} planted leaks found with their slope, {false} of {CASES} honest programs accused")
    assert found >= 0.99 * CASES, misses
    assert false <= 0.01 * CASES, misses
