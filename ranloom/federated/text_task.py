"""Labelled short texts for federated fine-tuning: any tab-separated file, or a seeded generator.

``python -m ranloom.federated.text_task data/text/topics.tsv`` writes the generated texts. A file
has the columns ``sentence`` and ``label``, as those of SST-2 do.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError

_COLUMNS = ["sentence", "label"]
_MOST_LABELS = 64
_TRAIN_ROWS = 64  # at least
_SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "mi", "no", "pe", "ru", "sa", "ti")


@dataclass(frozen=True)
class TextTask:
    """Texts as token ids.

    The ids 0 .. labels - 1 are the labels' own tokens (an answer is read from the logits of
    these), then come padding, the unknown word, and the words.

    Args:
        labels: number of labels.
        vocabulary: number of token ids.
        train: token ids, shape (rows, tokens).
        train_labels: shape (rows,).
        test: token ids, shape (rows, tokens).
        test_labels: shape (rows,).
    """

    labels: int
    vocabulary: int
    train: NDArray[np.int64]
    train_labels: NDArray[np.int64]
    test: NDArray[np.int64]
    test_labels: NDArray[np.int64]


def generate(
    labels: int, words: int, tokens: int, rows: int, seed: Sequence[int]
) -> list[tuple[str, int]]:
    """Texts whose words are drawn from a mixture of a common and a topical distribution.

    Each label is a topic: a distribution over words from a Dirichlet of concentration 0.1. A word
    is topical with probability 0.6, so that a text of a dozen words mostly gives its topic away.

    Args:
        labels: topics.
        words: size of the vocabulary, at most 144.
        tokens: words in a text.
        rows: texts, equally many of each label, in random order.
        seed: entropy of the random stream.
    """
    rng = np.random.default_rng(np.random.SeedSequence(list(seed)))
    names = [a + b for a in _SYLLABLES for b in _SYLLABLES][:words]
    common = rng.dirichlet(np.full(words, 0.5))
    topics = rng.dirichlet(np.full(words, 0.1), size=labels)
    texts = []
    for label in rng.permutation(np.arange(rows) % labels):
        drawn = rng.choice(words, size=tokens, p=0.4 * common + 0.6 * topics[label])
        texts.append((" ".join(names[word] for word in drawn), int(label)))
    return texts


def write_texts(path: Path, texts: Sequence[tuple[str, int]]) -> None:
    """Write a tab-separated file that :func:`read_texts` reads."""
    lines = ["\t".join(_COLUMNS)] + [f"{sentence}\t{label}" for sentence, label in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_texts(path: Path, words: int, tokens: int, test_rows: int) -> TextTask:
    """Read labelled sentences.

    The ``words`` most frequent words of the training rows have ids of their own. Sentences keep
    their last ``tokens`` words and are padded on the left. The last ``test_rows`` rows test.

    Args:
        path: tab-separated, columns ``sentence`` and ``label`` (whole numbers from 0).
        words: size of the vocabulary.
        tokens: length of a text.
        test_rows: rows that are kept for testing.

    Raises:
        InputError: the file is missing, has other columns or labels, or too few rows.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    except UnicodeDecodeError:
        raise InputError(str(path), "not UTF-8", "allowed: a tab-separated text file") from None
    except OSError as error:
        raise InputError(str(path), error.strerror, "allowed: a tab-separated file") from None
    if not rows or rows[0] != _COLUMNS:
        found = rows[0] if rows else "empty"
        raise InputError(f"{path}: row 1", found, f"allowed: columns {', '.join(_COLUMNS)}")
    sentences: list[list[str]] = []
    labels: list[int] = []
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != 2 or not row[1].isdecimal() or int(row[1]) >= _MOST_LABELS:
            allowed = f"allowed: a sentence and a label from 0 to {_MOST_LABELS - 1}"
            raise InputError(f"{path}: row {number}", row, allowed)
        sentences.append(row[0].split())
        labels.append(int(row[1]))
    cut = len(sentences) - test_rows
    if cut < _TRAIN_ROWS:
        raise InputError(
            str(path), f"{len(sentences)} rows", f"allowed: {test_rows + _TRAIN_ROWS} or more"
        )
    count = max(labels) + 1
    for name, part in (("training", labels[:cut]), ("test", labels[cut:])):
        missing = sorted(set(range(count)) - set(part))
        if missing or count < 2:
            allowed = f"allowed: at least two labels, each in the {name} rows"
            raise InputError(f"{path}: label", missing[0] if missing else count, allowed)
    counts = Counter(word for sentence in sentences[:cut] for word in sentence)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:words]
    padding, unknown = count, count + 1
    number_of = {word: unknown + 1 + index for index, word in enumerate(frequent)}
    ids = np.full((len(sentences), tokens), padding, dtype=np.int64)
    for row_ids, sentence in zip(ids, sentences, strict=True):
        kept = [number_of.get(word, unknown) for word in sentence[-tokens:]]
        row_ids[tokens - len(kept) :] = kept
    of = np.array(labels, dtype=np.int64)
    vocabulary = unknown + 1 + len(frequent)
    return TextTask(count, vocabulary, ids[:cut], of[:cut], ids[cut:], of[cut:])


def split_by_class(
    task: TextTask,
    n_k: NDArray[np.int64],
    slow: NDArray[np.bool_],
    slow_labels: int,
    skew: float,
    seed: list[int],
) -> list[NDArray[np.int64]]:
    """Rows of each UE, not identically distributed: slow UEs hold the last labels.

    A row of a slow UE has one of the last ``slow_labels`` labels with probability ``skew``, a row
    of any other UE one of the other labels with that probability.

    Args:
        task: texts.
        n_k: rows of each UE, shape (ues,).
        slow: which UEs are slow, shape (ues,).
        slow_labels: how many labels are the slow ones'.
        skew: 0.5 for no difference, 1 for disjoint labels.
        seed: entropy of the random stream.

    Returns:
        Row numbers into ``task.train`` for each UE (drawn with replacement).
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    first_slow = task.labels - slow_labels
    rows_slow = np.flatnonzero(task.train_labels >= first_slow)
    rows_fast = np.flatnonzero(task.train_labels < first_slow)
    shares = []
    for count, is_slow in zip(n_k, slow, strict=True):
        own, other = (rows_slow, rows_fast) if is_slow else (rows_fast, rows_slow)
        from_own = rng.random(int(count)) < skew
        shares.append(
            np.where(from_own, rng.choice(own, int(count)), rng.choice(other, int(count)))
        )
    return shares


TOPICS = {"labels": 6, "words": 64, "tokens": 12, "rows": 3240, "seed": (20260928, 6)}


if __name__ == "__main__":
    write_texts(Path(sys.argv[1]), generate(**TOPICS))  # type: ignore[arg-type]
