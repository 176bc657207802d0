"""Training text: byte-level samples from a file or a seeded generator, and their order.

Tokens are the bytes of the UTF-8 text. Byte 0 never occurs in text: it opens every sample and
fills it up to the common length, so 256 token ids are all that the model needs. The order of
samples over a run derives from the seed alone; whoever knows the seed can name the samples of any
micro-batch without asking the coordinator.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from ranloom.errors import InputError
from ranloom.training.opt_model import MicroBatch

VOCABULARY = 256
GENERATED = "generated"
SHORTEST_SAMPLE = 2
_PAD = 0
_LABEL_WORDS = {"0": "negative", "1": "positive"}


@dataclass(frozen=True)
class Corpus:
    """Samples as rows of token ids.

    Args:
        name: where the text came from.
        tokens: token ids, one sample a row, filled with 0 [N, T], uint8.
        lengths: tokens that count in each row [N], 2..T.
    """

    name: str
    tokens: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sequence_length(self) -> int:
        """Tokens of a row, T."""
        return int(self.tokens.shape[1])

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all samples; two sites with the same one train on the same text."""
        digest = hashlib.sha256(str(self.tokens.shape).encode())
        digest.update(np.ascontiguousarray(self.tokens).tobytes())
        digest.update(np.ascontiguousarray(self.lengths, dtype=np.int64).tobytes())
        return digest.hexdigest()

    def micro_batch(self, sample_ids: Sequence[int], step: int) -> MicroBatch:
        """The named samples as tensors, to be computed in ``step``."""
        rows = np.asarray(sample_ids, dtype=np.int64)
        return MicroBatch(
            step=step,
            sample_ids=tuple(int(sample) for sample in rows),
            tokens=torch.from_numpy(self.tokens[rows].astype(np.int64)),
            lengths=torch.from_numpy(self.lengths[rows].astype(np.int64)),
        )


@dataclass(frozen=True)
class SampleOrder:
    """The one global queue of samples: epoch after epoch, each a permutation drawn from the seed.

    Args:
        seed: root of the permutations.
        samples: samples in the corpus N.
        micro_batch_samples: samples in a micro-batch m.
    """

    seed: int
    samples: int
    micro_batch_samples: int

    def __post_init__(self) -> None:
        if not 1 <= self.micro_batch_samples <= self.samples:
            raise InputError(
                "micro_batch_samples",
                self.micro_batch_samples,
                f"allowed: 1 to {self.samples} (the samples of the corpus)",
            )

    def sample_ids(self, micro_batch: int) -> tuple[int, ...]:
        """Samples of the micro-batch with this number in the global queue (0, 1, ...)."""
        first = micro_batch * self.micro_batch_samples
        positions = range(first, first + self.micro_batch_samples)
        return tuple(
            int(epoch_permutation(self.seed, self.samples, position // self.samples)[offset])
            for position in positions
            for offset in (position % self.samples,)
        )


@lru_cache(maxsize=4)
def epoch_permutation(seed: int, samples: int, epoch: int) -> np.ndarray:
    """Order of the N samples in one epoch [N]."""
    stream = np.random.default_rng(np.random.SeedSequence([seed, 1, epoch]))
    return stream.permutation(samples)


def corpus_of_texts(name: str, texts: Sequence[str], sequence_length: int) -> Corpus:
    """One sample a text, opened by byte 0 and cut at ``sequence_length``.

    Args:
        name: where the texts came from.
        texts: the texts, each at least one byte.
        sequence_length: tokens of a row T.
    """
    if sequence_length < SHORTEST_SAMPLE:
        raise InputError("sequence_length", sequence_length, f"allowed: from {SHORTEST_SAMPLE} on")
    tokens = np.full((len(texts), sequence_length), _PAD, dtype=np.uint8)
    lengths = np.empty(len(texts), dtype=np.int64)
    for row, text in enumerate(texts):
        raw = np.frombuffer(text.encode("utf-8")[: sequence_length - 1], dtype=np.uint8)
        tokens[row, 1 : 1 + len(raw)] = raw
        lengths[row] = 1 + len(raw)
    return Corpus(name, tokens, lengths)


def read_text(path: Path, sequence_length: int) -> Corpus:
    """Any UTF-8 text, cut into pieces of ``sequence_length - 1`` bytes.

    Raises:
        InputError: missing, not UTF-8, with NUL bytes, or empty.
    """
    raw = _read_utf8(path).encode("utf-8")
    stride = sequence_length - 1
    if stride < 1:
        raise InputError("sequence_length", sequence_length, f"allowed: from {SHORTEST_SAMPLE} on")
    pieces = -(-len(raw) // stride)
    tokens = np.full((pieces, sequence_length), _PAD, dtype=np.uint8)
    flat = np.full(pieces * stride, _PAD, dtype=np.uint8)
    flat[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    tokens[:, 1:] = flat.reshape(pieces, stride)
    lengths = np.full(pieces, sequence_length, dtype=np.int64)
    lengths[-1] = 1 + len(raw) - (pieces - 1) * stride
    return Corpus(path.name, tokens, lengths)


def read_tsv(path: Path, sequence_length: int) -> Corpus:
    """A table of sentences as in SST-2: a header with ``sentence`` and, optionally, ``label``.

    A sample is the sentence followed by the word of its label (``negative``, ``positive``; other
    labels stand as they are), so the label is learned as text.

    Raises:
        InputError: missing file, not UTF-8, no ``sentence`` column, a row with a missing cell, or
            no row with text.
    """
    lines = _read_utf8(path).replace("\r\n", "\n").split("\n")
    rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    header = next(rows)
    if "sentence" not in header:
        raise InputError(f"{path}:1", header, "allowed: a header row with a column 'sentence'")
    sentence_column = header.index("sentence")
    label_column = header.index("label") if "label" in header else None
    texts = []
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != len(header):
            raise InputError(f"{path}:{number}", row, f"allowed: {len(header)} cells")
        text = row[sentence_column].strip()
        if not text:
            continue
        if label_column is not None:
            label = row[label_column].strip()
            text = f"{text} {_LABEL_WORDS.get(label, label)}"
        texts.append(text)
    if not texts:
        raise InputError(str(path), len(lines), "allowed: at least one row with a sentence")
    return corpus_of_texts(path.name, texts, sequence_length)


def generate_text(seed: int, samples: int, sequence_length: int) -> Corpus:
    """Sentences of a small random language; lengths vary, so that weighting matters.

    A lexicon of pronounceable words and, for each word, the four words that may follow it are
    drawn from the seed. A sentence is a walk through them. There is something to learn (letters
    within words, words after words) and nothing to download.

    Args:
        seed: root of the language and the sentences.
        samples: sentences N.
        sequence_length: tokens of a row T.
    """
    if samples < 1:
        raise InputError("samples", samples, "allowed: from 1 on")
    stream = np.random.default_rng(np.random.SeedSequence([seed, 0]))
    consonants, vowels = list("bdfgklmnprstvz"), list("aeiou")
    words = [
        "".join(
            str(stream.choice(consonants)) + str(stream.choice(vowels))
            for _ in range(int(stream.integers(1, 4)))
        )
        for _ in range(64)
    ]
    followers = stream.integers(0, len(words), size=(len(words), 4))
    texts = []
    for _ in range(samples):
        word = int(stream.integers(len(words)))
        chosen = [words[word]]
        for choice in stream.integers(0, 4, size=int(stream.integers(2, 16))):
            word = int(followers[word, choice])
            chosen.append(words[word])
        texts.append(" ".join(chosen) + ".")
    return corpus_of_texts(GENERATED, texts, sequence_length)


def load_corpus(source: str, seed: int, samples: int, sequence_length: int) -> Corpus:
    """The corpus that a setting names.

    Args:
        source: ``generated``, or the path of a text: ``.tsv`` is read as a table of sentences,
            anything else as plain UTF-8 text.
        seed: root of generated text.
        samples: sentences to generate; a file has its own number.
        sequence_length: tokens of a row T.

    Raises:
        InputError: a file that cannot be used.
    """
    if source == GENERATED:
        return generate_text(seed, samples, sequence_length)
    path = Path(source)
    reader = read_tsv if path.suffix == ".tsv" else read_text
    return reader(path, sequence_length)


def _read_utf8(path: Path) -> str:
    if not path.is_file():
        raise InputError(str(path), "missing", "allowed: an existing text file")
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{path}: byte {error.start}"
        raise InputError(where, raw[error.start : error.end], "allowed: UTF-8 text") from None
    if "\0" in text:
        raise InputError(f"{path}: byte {raw.index(0)}", "\0", "allowed: text without NUL bytes")
    if not text.strip():
        raise InputError(str(path), len(raw), "allowed: a file with text")
    return text
