"""A stand-in for a program and a tokenizer: small, exact, and suspicious of every array it gets."""

import json

import numpy as np
import pytest

from tilewright.ir.layout import (
    CHOSEN,
    CONTEXT_LENS,
    INPUT_IDS,
    LOGIT_ROWS,
    PAGE_TABLE,
    POSITION_IDS,
    QUERY_STARTS,
    SEED,
    SLOTS,
    SOURCES,
    STEP,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)
from tilewright.ir.ops.sampling import sample
from tilewright.runtime.engine.batch import BatchSizes, make_batch, sizes_of
from tilewright.runtime.engine.engine import Engine, EngineConfig
from tilewright.runtime.engine.runner import StepResult
from tilewright.runtime.engine.tokenizer import Tokenizer


class HashModel:
    """A model whose logits are a hash of the whole context, which it reads through the page table.

    Its cache holds a token and its position in each slot. Anything wrong in a batch (a page of
    another sequence, a token left out, a stale slot) changes the context, and so the answer, or is
    an AssertionError.
    """

    def __init__(
        self,
        num_pages=64,
        page_size=4,
        vocab_size=97,
        pad=lambda s: s,
        samples=False,
        overlaps=False,
    ):
        self.num_pages, self.page_size, self.vocab_size = num_pages, page_size, vocab_size
        self.cache = np.full((num_pages, page_size, 2), -1, np.int64)
        self.pad = pad
        self.samples, self.overlaps = samples, overlaps
        self.chosen = np.zeros(0, np.int32)  # by the last step
        self.steps: list[BatchSizes] = []
        self.reads = 0  # steps whose logits were looked at

    def reserve(self, max_tokens, max_seqs, context_len):
        self.reserved = (max_tokens, max_seqs, context_len)

    def run(self, work):
        sizes = self.pad(sizes_of(work, self.page_size))
        batch = make_batch(work, self.page_size, sizes, samples=self.samples)
        self.steps.append(batch.sizes)
        logits = self.compute(**batch.arrays)
        tokens = logits.argmax(-1)
        if self.samples:
            names = (TEMPERATURE, TOP_K, TOP_P, SEED, STEP)
            tokens = sample.reference(logits, *(batch.arrays[n] for n in names))
        self.chosen = tokens
        step = len(self.steps)

        def read():
            assert step == len(self.steps), "logits are there until the next step"
            self.reads += 1
            return logits

        return StepResult(batch, lambda: tokens, read)

    def compute(self, **arrays):
        ids, positions = arrays[INPUT_IDS], arrays[POSITION_IDS]
        slots, table = arrays[SLOTS], arrays[PAGE_TABLE]
        starts, lens, rows = arrays[QUERY_STARTS], arrays[CONTEXT_LENS], arrays[LOGIT_ROWS]
        assert ids.shape == positions.shape == (1, len(slots))
        assert ids.dtype == positions.dtype == np.int64
        assert all(a.dtype == np.int32 for a in (slots, table, starts, lens, rows))
        assert len(starts) == len(lens) + 1 == len(table) + 1
        assert starts[0] == 0
        assert (np.diff(starts) >= 0).all()
        if self.samples:
            sources = arrays[SOURCES]
            assert sources.shape == ids.shape
            assert arrays[CHOSEN].dtype == sources.dtype == np.int32
            assert self.overlaps or (sources < 0).all()
            kept = np.append(self.chosen, -1)  # one at least
            ids = np.where(sources < 0, ids, np.maximum(kept[sources], 0))
        real = slots >= 0
        assert real.sum() == starts[-1]
        assert real[: starts[-1]].all()
        assert len(np.unique(slots[real])) == real.sum(), "two tokens are written to one slot"
        page, offset = np.divmod(slots[real], self.page_size)
        self.cache[page, offset] = np.stack([ids[0, real], positions[0, real]], -1)
        return np.stack([self._row(int(r), starts, lens, table) for r in rows])

    def _row(self, row, starts, lens, table):
        owner = int(np.searchsorted(starts, row, "right")) - 1
        if owner >= len(lens):
            return np.zeros(self.vocab_size, np.float32)  # a padded row of a padded batch
        length = lens[owner] - (starts[owner + 1] - 1 - row)
        where = np.arange(length)
        context = self.cache[table[owner, where // self.page_size], where % self.page_size]
        assert (context[:, 1] == where).all(), "the cache has another token at some position"
        return self.logits(context[:, 0])

    def logits(self, tokens):
        rng = np.random.default_rng(np.asarray(tokens, np.int64).tolist())
        return rng.standard_normal(self.vocab_size).astype(np.float32) * 3

    def continuation(self, prompt, count):
        """What greedy decoding gives for `prompt`, computed without any cache."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens[len(prompt) :]


def byte_tokenizer(chat_template=None):
    """Tokens 0..255 are bytes, 256 is <eos>, 257 is <bos>, put before each text."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    by_byte = dict(zip(_bytes_in_order(), alphabet, strict=False))
    vocab = {by_byte[b]: b for b in range(256)}
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False}
    special |= {"normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False}
    byte_level |= {"trim_offsets": True, "use_regex": False}
    config = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 256, "content": "<eos>", **special},
            {"id": 257, "content": "<bos>", **special},
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<bos>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [257], "tokens": ["<bos>"]}},
        },
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "fuse_unk": False},
    }
    special_tokens = {"bos_token": "<bos>", "eos_token": "<eos>"}
    return Tokenizer(json.dumps(config), chat_template, special_tokens)


def _bytes_in_order():
    """The byte that each character of the byte-level alphabet stands for, in sorted order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    characters = {b: chr(b) for b in printable}
    characters |= {b: chr(256 + i) for i, b in enumerate(others)}
    return sorted(characters, key=characters.__getitem__)


@pytest.fixture
def make_engine():
    """Build an engine over a HashModel: keyword arguments of the model, then of EngineConfig."""

    def make(
        num_pages=64,
        page_size=4,
        vocab_size=97,
        pad=lambda s: s,
        samples=False,
        overlaps=False,
        tokenizer=None,
        **config,
    ):
        config = {"context_len": 1000, "max_num_seqs": 8, "max_num_batched_tokens": 16} | config
        model = HashModel(num_pages, page_size, vocab_size, pad, samples, overlaps)
        return Engine(model, EngineConfig(**config), tokenizer)

    return make


@pytest.fixture
def run_all():
    """Step an engine until it is idle, checking its books after each step."""

    def run(engine, max_steps=10_000):
        for _ in range(max_steps):
            if not engine.has_work:
                engine.check_integrity()
                return
            engine.step()
            engine.check_integrity()
        raise AssertionError("the engine does not come to an end")

    return run


@pytest.fixture
def make_tokenizer():
    """Build a tokenizer over bytes, with a chat template or without."""
    return byte_tokenizer


@pytest.fixture
def tokenizer():
    """A tokenizer over bytes."""
    return byte_tokenizer()
