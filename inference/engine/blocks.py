"""Reference counts of the cache's blocks. Bookkeeping only: no tensors here."""

EMPTY_BLOCK = 0
"""Never handed out. Short sequences of a batch are padded with it, so it must stay zeros."""


class BlockPool:
    """Blocks `1..count`, each with the number of its holders.

    A holder is a sequence or the prefix tree. A block without a holder is free.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._holders = [0] * (count + 1)
        self._free = list(range(count, 0, -1))
        self.highest = 0
        """The highest block that was ever handed out: the lowest free one goes first."""

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    def holders(self, block: int) -> int:
        """How many hold this block."""
        return self._holders[block]

    def take(self) -> int:
        """Hand out a free block with one holder. Raises IndexError when there is none."""
        block = self._free.pop()
        self._holders[block] = 1
        self.highest = max(self.highest, block)
        return block

    def hold(self, block: int) -> None:
        """Add a holder to a block that has one."""
        if self._holders[block] < 1:
            raise ValueError(f"Block {block} is free and cannot be shared.")
        self._holders[block] += 1

    def drop(self, block: int) -> int:
        """Take a holder away; returns how many are left. The last one frees the block."""
        left = self._holders[block] - 1
        if left < 0:
            raise ValueError(f"Block {block} is free already.")
        self._holders[block] = left
        if left == 0:
            self._free.append(block)
        return left

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held, once."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert EMPTY_BLOCK not in free, "the empty block was freed"
        for block in range(1, self.count + 1):
            assert (self._holders[block] == 0) == (block in free), f"block {block}"
