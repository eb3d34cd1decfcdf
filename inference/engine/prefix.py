"""Who holds which blocks: leases of sequences, and the tree of prefixes that they share.

Admission reserves a sequence's whole future, so a lease that was granted can always grow.
Bookkeeping only: no tensors here.
"""

from collections import OrderedDict
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from inference.engine.blocks import EMPTY_BLOCK, BlockPool


@dataclass(frozen=True)
class PrefixKey:
    """Prefixes are shared inside one key and never across keys."""

    scope: str
    """Whose prefixes these are."""
    steering: str
    """Digest of the request's steering vectors; empty when it has none."""


@dataclass(eq=False)
class Lease:
    """The blocks of one sequence, in the order of its positions."""

    blocks: list[int]
    promised: int
    """Blocks that it may still take."""
    cached_tokens: int
    """How many tokens stood in the cache when the lease was granted."""


@dataclass(frozen=True)
class BlockCopy:
    """The runner copies one block onto another before the next step."""

    source: int
    target: int


@dataclass(eq=False)
class _Node:
    """One full block of a known prefix."""

    parent: "_Node | None"
    tokens: tuple[int, ...]
    block: int
    key: PrefixKey | None = None
    """Set on the root of a tree alone."""
    children: "dict[tuple[int, ...], _Node]" = field(default_factory=dict)


class PrefixCache:
    """Grants leases, and keeps finished prefixes until their blocks are needed.

    The children of a node are found by their token ids themselves, so two prefixes can never be
    taken for one another.
    """

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._pool = BlockPool(blocks)
        self._roots: dict[PrefixKey, _Node] = {}
        self._nodes: dict[int, _Node] = {}
        self._idle: OrderedDict[_Node, None] = OrderedDict()
        self._promised = 0

    @property
    def blocks(self) -> int:
        """All blocks."""
        return self._pool.count

    @property
    def used(self) -> int:
        """Blocks after this one were never used."""
        return self._pool.highest

    @property
    def available(self) -> int:
        """Blocks that can still be promised: free ones and cached ones without a user."""
        return self._pool.free + len(self._idle) - self._promised

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-tokens // self.block_tokens)

    def known(self, key: PrefixKey, tokens: Tokens[int]) -> int:
        """How many of these tokens a lease that reads would find in the cache."""
        return len(self._match(key, tokens)) * self.block_tokens

    def acquire(
        self, key: PrefixKey, tokens: Tokens[int], future: int, *, read: bool
    ) -> Lease | None:
        """Grant room for `future` tokens, or None while there is not enough.

        With `read`, the longest known prefix of `tokens` is shared, but never all of it: the last
        token has to run for its scores.
        """
        path = self._match(key, tokens) if read else []
        wanted = self.blocks_for(future) - len(path)
        awakened = sum(1 for node in path if node in self._idle)
        if wanted + awakened > self.available:
            return None
        for node in path:
            self._hold(node.block)
        self._promised += wanted
        blocks = [node.block for node in path]
        return Lease(blocks, wanted, len(blocks) * self.block_tokens)

    def fork(self, lease: Lease, shared: int, future: int) -> tuple[Lease, BlockCopy | None] | None:
        """Grant a second lease on the first `shared` tokens of another, or None without room.

        Full blocks are shared. The rest of the shared tokens stands in a block of its own, copied
        before either sequence writes to it.
        """
        full, rest = divmod(shared, self.block_tokens)
        wanted = self.blocks_for(future) - full
        if wanted > self.available:
            return None
        for block in lease.blocks[:full]:
            self._hold(block)
        self._promised += wanted
        twin = Lease(lease.blocks[:full], wanted, shared)
        if not rest:
            return twin, None
        self.grow(twin, shared)
        return twin, BlockCopy(source=lease.blocks[full], target=twin.blocks[full])

    def grow(self, lease: Lease, tokens: int) -> None:
        """Give the lease the blocks that so many tokens need, out of what it was promised."""
        missing = self.blocks_for(tokens) - len(lease.blocks)
        if missing > lease.promised:
            raise ValueError("A sequence outgrew what was reserved for it.")
        for _ in range(missing):
            if not self._pool.free:
                self._evict()
            lease.blocks.append(self._pool.take())
            lease.promised -= 1
            self._promised -= 1

    def remember(self, key: PrefixKey, tokens: Tokens[int], lease: Lease) -> None:
        """Keep the full blocks of `tokens`, all of them computed, for later sequences.

        May exchange blocks of the lease for equal ones.
        """
        node = self._roots.get(key)
        if node is None:
            node = self._roots[key] = _Node(None, (), EMPTY_BLOCK, key)
        for index in range(len(tokens) // self.block_tokens):
            start = index * self.block_tokens
            part = tuple(tokens[start : start + self.block_tokens])
            child = node.children.get(part)
            own = lease.blocks[index]
            if child is None:
                child = _Node(node, part, own)
                node.children[part] = child
                self._nodes[own] = child
                self._pool.hold(own)
            elif child.block != own:
                # Two sequences computed the same block: this one moves to the known block, so
                # that whoever holds a block of the tree also holds all that come before it.
                self._hold(child.block)
                lease.blocks[index] = child.block
                self._pool.drop(own)
            node = child
        if not self._roots[key].children:
            del self._roots[key]

    def release(self, lease: Lease) -> list[int]:
        """End a lease; returns the blocks that became free."""
        self._promised -= lease.promised
        lease.promised = 0
        freed = []
        for block in reversed(lease.blocks):
            left = self._pool.drop(block)
            if left == 0:
                freed.append(block)
            elif left == 1 and block in self._nodes:
                self._idle[self._nodes[block]] = None
        lease.blocks = []
        return freed

    def check(self) -> None:
        """Raise AssertionError unless the books balance."""
        self._pool.check()
        assert 0 <= self._promised <= self._pool.free + len(self._idle), "promised too much"
        for block, node in self._nodes.items():
            assert node.block == block
            assert self._pool.holders(block) >= 1, f"cached block {block} is free"
            assert (node in self._idle) == (self._pool.holders(block) == 1), f"block {block}"
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node, f"block {block} is not in its tree"

    def check_unused(self) -> None:
        """Raise AssertionError unless nobody holds a lease."""
        self.check()
        assert self._promised == 0, "blocks are promised to nobody"
        assert self._pool.free + len(self._idle) == self._pool.count, "a block leaked"

    def _match(self, key: PrefixKey, tokens: Tokens[int]) -> list[_Node]:
        node = self._roots.get(key)
        path: list[_Node] = []
        if node is None:
            return path
        for start in range(0, len(tokens) - self.block_tokens, self.block_tokens):
            child = node.children.get(tuple(tokens[start : start + self.block_tokens]))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _hold(self, block: int) -> None:
        self._pool.hold(block)
        node = self._nodes.get(block)
        if node is not None:
            self._idle.pop(node, None)

    def _evict(self) -> None:
        """Forget the cached block that was unused longest and that no other one builds on."""
        node = next(node for node in self._idle if not node.children)
        del self._idle[node]
        del self._nodes[node.block]
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        self._pool.drop(node.block)
        if parent.key is not None and not parent.children:
            del self._roots[parent.key]
