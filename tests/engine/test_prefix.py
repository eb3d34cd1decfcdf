"""The books of the cache: blocks, leases and the tree of prefixes."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from inference.engine.blocks import EMPTY_BLOCK, BlockPool
from inference.engine.prefix import Lease, PrefixCache, PrefixKey

BLOCKS, SIZE = 12, 4
KEYS = [PrefixKey("ada", ""), PrefixKey("ben", ""), PrefixKey("ada", "steered")]


def test_a_block_cannot_be_freed_twice_or_shared_while_free() -> None:
    pool = BlockPool(2)
    block = pool.take()
    assert pool.drop(block) == 0
    with pytest.raises(ValueError, match="free already"):
        pool.drop(block)
    with pytest.raises(ValueError, match="free and cannot be shared"):
        pool.hold(block)


@pytest.mark.parametrize("other", [KEYS[1], KEYS[2]])
def test_a_prefix_is_found_under_its_own_key_alone(other: PrefixKey) -> None:
    cache = PrefixCache(BLOCKS, SIZE)
    tokens = list(range(10))
    lease = cache.acquire(KEYS[0], tokens, 10, read=True)
    assert lease is not None
    cache.grow(lease, 10)
    cache.remember(KEYS[0], tokens, lease)
    blocks = list(lease.blocks)
    cache.release(lease)
    same = cache.acquire(KEYS[0], tokens, 10, read=True)
    assert same is not None
    assert same.blocks == blocks[:2]
    assert same.cached_tokens == 8
    stranger = cache.acquire(other, tokens, 10, read=True)
    assert stranger is not None
    assert stranger.cached_tokens == 0


def test_the_last_token_of_a_known_prompt_still_runs() -> None:
    cache = PrefixCache(BLOCKS, SIZE)
    tokens = list(range(8))
    lease = cache.acquire(KEYS[0], tokens, 8, read=True)
    assert lease is not None
    cache.grow(lease, 8)
    cache.remember(KEYS[0], tokens, lease)
    cache.release(lease)
    again = cache.acquire(KEYS[0], tokens, 8, read=True)
    assert again is not None
    assert again.cached_tokens == 4


def test_what_was_promised_cannot_be_promised_again() -> None:
    cache = PrefixCache(BLOCKS, SIZE)
    first = cache.acquire(KEYS[0], [1], BLOCKS * SIZE - 3, read=True)
    assert first is not None
    assert cache.acquire(KEYS[0], [1], SIZE, read=True) is None
    cache.grow(first, BLOCKS * SIZE - 3)
    with pytest.raises(ValueError, match="outgrew"):
        cache.grow(first, BLOCKS * SIZE + 1)


@dataclass
class Holder:
    """A sequence of the machine, and what it wrote where."""

    key: PrefixKey
    lease: Lease
    tokens: list[int]
    future: int


class CacheMachine(RuleBasedStateMachine):
    """Random sequences over a small cache. `written` is what the blocks would really hold."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(BLOCKS, SIZE)
        self.written: dict[int, list[tuple[PrefixKey, tuple[int, ...]]]] = {}
        self.alive: list[Holder] = []

    def write(self, holder: Holder, start: int) -> None:
        """Write each position's key and whole past, as attention's keys and values depend on."""
        self.cache.grow(holder.lease, len(holder.tokens))
        for place in range(start, len(holder.tokens)):
            block = holder.lease.blocks[place // SIZE]
            slots = self.written.setdefault(block, [(holder.key, ())] * SIZE)
            slots[place % SIZE] = (holder.key, tuple(holder.tokens[: place + 1]))

    def check_content(self, holder: Holder) -> None:
        for place in range(len(holder.tokens)):
            slots = self.written[holder.lease.blocks[place // SIZE]]
            assert slots[place % SIZE] == (holder.key, tuple(holder.tokens[: place + 1]))

    @rule(
        target=holders,
        key=st.sampled_from(KEYS),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        more=st.integers(0, 16),
        read=st.booleans(),
    )
    def start(self, key: PrefixKey, tokens: list[int], more: int, read: bool) -> object:
        lease = self.cache.acquire(key, tokens, len(tokens) + more, read=read)
        if lease is None:
            return multiple()
        assert lease.cached_tokens < len(tokens)
        holder = Holder(key, lease, tokens, len(tokens) + more)
        self.write(holder, lease.cached_tokens)
        self.alive.append(holder)
        return holder

    @rule(target=holders, holder=holders, more=st.integers(0, 12))
    def fork(self, holder: Holder, more: int) -> object:
        if holder not in self.alive:
            return multiple()
        granted = self.cache.fork(holder.lease, len(holder.tokens), len(holder.tokens) + more)
        if granted is None:
            return multiple()
        lease, copy = granted
        if copy is not None:
            self.written[copy.target] = list(self.written[copy.source])
        twin = Holder(holder.key, lease, list(holder.tokens), len(holder.tokens) + more)
        self.alive.append(twin)
        return twin

    @rule(holder=holders, token=st.integers(0, 1))
    def extend(self, holder: Holder, token: int) -> None:
        if holder in self.alive and len(holder.tokens) < holder.future:
            holder.tokens.append(token)
            self.write(holder, len(holder.tokens) - 1)

    @rule(holder=holders)
    def remember(self, holder: Holder) -> None:
        if holder in self.alive:
            self.cache.remember(holder.key, holder.tokens, holder.lease)

    @rule(holder=consumes(holders), keep=st.booleans())
    def end(self, holder: Holder, keep: bool) -> None:
        if holder not in self.alive:
            return
        if keep:
            self.cache.remember(holder.key, holder.tokens, holder.lease)
        self.alive.remove(holder)
        freed = self.cache.release(holder.lease)
        for block in freed:
            self.written.pop(block, None)

    @invariant()
    def books_balance(self) -> None:
        self.cache.check()
        for holder in self.alive:
            assert EMPTY_BLOCK not in holder.lease.blocks
            self.check_content(holder)

    def teardown(self) -> None:
        for holder in self.alive:
            self.cache.release(holder.lease)
        self.cache.check_unused()
        # Everything cached can be given up again for one sequence that needs it all.
        assert self.cache.available == BLOCKS
        lease = self.cache.acquire(KEYS[0], [1], BLOCKS * SIZE, read=False)
        assert lease is not None
        self.cache.grow(lease, BLOCKS * SIZE)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
