"""Text to samples, and the order that follows from the seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ranloom.errors import InputError
from ranloom.training.data import (
    SampleOrder,
    corpus_of_texts,
    generate_text,
    load_corpus,
    read_text,
    read_tsv,
)


def test_bytes_are_tokens_and_byte_zero_opens_and_fills():
    corpus = corpus_of_texts("x", ["ab", "é"], sequence_length=5)
    assert corpus.tokens.tolist() == [[0, 97, 98, 0, 0], [0, 0xC3, 0xA9, 0, 0]]
    assert corpus.lengths.tolist() == [3, 3]
    batch = corpus.micro_batch([1, 0, 1], step=4)
    assert batch.tokens.tolist()[1] == [0, 97, 98, 0, 0]
    assert (batch.step, batch.sample_ids) == (4, (1, 0, 1))


def test_plain_text_is_cut_without_loss(tmp_path):
    text = "The quick brown fox — jumps over the lazy dog.\n" * 7
    path = tmp_path / "book.txt"
    path.write_text(text, encoding="utf-8")
    corpus = read_text(path, sequence_length=17)
    joined = b"".join(
        row[1:length].tobytes() for row, length in zip(corpus.tokens, corpus.lengths, strict=True)
    )
    assert joined.decode() == text
    assert set(corpus.lengths[:-1]) == {17}


def test_tsv_joins_the_sentence_and_the_word_of_its_label(tmp_path):
    path = tmp_path / "sst.tsv"
    path.write_text("sentence\tlabel\na fine film \t1\n\ndull\t0\n \t1\n", encoding="utf-8")
    corpus = read_tsv(path, sequence_length=32)
    texts = [bytes(r[1:n]).decode() for r, n in zip(corpus.tokens, corpus.lengths, strict=True)]
    assert texts == ["a fine film positive", "dull negative"]


def test_real_sst2_file(shared_data):
    corpus = read_tsv(shared_data / "text" / "sst2_alps_test.tsv", sequence_length=64)
    assert len(corpus) == 872
    first = bytes(corpus.tokens[0, 1 : corpus.lengths[0]]).decode()
    assert first.startswith("it 's a charming and often affecting journey .")
    assert first.endswith("positive")


def test_generated_text_follows_its_seed():
    one, again, other = (generate_text(seed, 50, 64) for seed in (1, 1, 2))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert len(set(one.lengths.tolist())) > 10


def test_fingerprint_sees_a_changed_byte():
    corpus = generate_text(1, 5, 16)
    before = corpus.fingerprint
    corpus.tokens[4, 1] ^= 1
    assert corpus.fingerprint != before


@pytest.mark.parametrize("samples", [12, 13])
def test_every_epoch_holds_every_sample_once(samples):
    order = SampleOrder(seed=3, samples=samples, micro_batch_samples=4)
    epochs = 4
    drawn = [i for m in range(samples * epochs // 4) for i in order.sample_ids(m)]
    assert Counter(drawn) == dict.fromkeys(range(samples), epochs)
    assert drawn[:samples] != drawn[samples : 2 * samples]
    assert order.sample_ids(5) == tuple(drawn[20:24])


def test_order_is_that_of_numpy_from_the_seed():
    expected = np.random.default_rng(np.random.SeedSequence([7, 1, 0])).permutation(10)
    order = SampleOrder(seed=7, samples=10, micro_batch_samples=5)
    assert order.sample_ids(1) == tuple(expected[5:].tolist())


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.txt", b"", "a.txt"),
        ("a.txt", b"ok \xff\xfe", "byte 3"),
        ("a.txt", b"nul \0 here", "byte 4"),
        ("a.tsv", b"text\tlabel\nx\t1\n", "a.tsv:1"),
        ("a.tsv", b"sentence\tlabel\nfine\t1\nlonely\n", "a.tsv:3"),
        ("a.tsv", b"sentence\tlabel\n", "a.tsv"),
        ("missing.txt", None, "missing.txt"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, where):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="allowed") as caught:
        load_corpus(str(path), seed=0, samples=1, sequence_length=16)
    assert where in caught.value.where
    assert "\n" not in str(caught.value)
