"""Texts through `text:wordllama`: against the package's own pooling, and a run on a column of texts."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from fedlog.cli.main import main
from fedlog.data.schema import TEXT_BYTES
from fedlog.data.tables import encode_texts
from fedlog.errors import InputError
from fedlog.models.encoders import text
from fedlog.models.encoders.names import find_encoded_shape, fingerprint_encoder
from fedlog.models.encoders.text import TextEncoder, load_text_encoder

pytest.importorskip("wordllama", reason="needs fedlog[pretrained]")

SENTENCES = ("the knee hurts when she climbs stairs", "Grüße aus Köln", "x", "two\nlines, and: signs!")
FOOD = [
    f"{who} {did} the {what}"
    for who, did, what in product(
        ("my aunt", "the cook"), ("ate", "baked", "tasted"), ("bread", "soup", "apple pie", "cheese")
    )
]
SPORT = [
    f"{who} {did} the {what}"
    for who, did, what in product(
        ("our team", "the keeper"), ("won", "lost", "played"), ("match", "final", "football cup", "tennis game")
    )
]


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return load_text_encoder("text:wordllama", (TEXT_BYTES,))


def encode(encoder: TextEncoder, *texts: str | None) -> torch.Tensor:
    return encoder.encode(torch.from_numpy(encode_texts(pl.Series("t", list(texts), dtype=pl.String))))


def test_features_are_those_of_the_package(encoder: TextEncoder) -> None:
    from tokenizers import Tokenizer
    from wordllama.inference import WordLlamaInference

    words = Path(text.find_spec("wordllama").submodule_search_locations[0]) / text.TOKENIZER[0]  # type: ignore[union-attr,index]
    theirs = WordLlamaInference(encoder.table, Tokenizer.from_file(str(words))).embed(list(SENTENCES))
    np.testing.assert_allclose(encode(encoder, *SENTENCES).numpy(), theirs, atol=1e-6)


def test_a_text_does_not_depend_on_its_company_and_gaps_are_zeros(encoder: TextEncoder) -> None:
    together = encode(encoder, *SENTENCES, None, "")
    for at, sentence in enumerate(SENTENCES):
        assert torch.equal(encode(encoder, sentence)[0], together[at])
    assert not together[-2:].any()
    # A long text is cut, and no half character is left behind.
    assert torch.equal(encode(encoder, "ü" * 5000), encode(encoder, "ü" * (TEXT_BYTES // 2)))
    assert torch.equal(encode(encoder, "a" + "ü" * 5000), encode(encoder, "a" + "ü" * (TEXT_BYTES // 2 - 1)))


def test_other_records_and_other_files_are_refused(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_encoded_shape("text:wordllama+unit", (TEXT_BYTES,)) == (256,)
    assert fingerprint_encoder("text:wordllama+unit", (TEXT_BYTES,)) == f"{encoder.digest}+unit@"
    with pytest.raises(InputError, match="one text and nothing else") as refused:
        load_text_encoder("text:wordllama", (12,))
    assert "--text COLUMN" in str(refused.value.hint)
    with pytest.raises(InputError, match="unknown text body: text:other"):
        load_text_encoder("text:other", (TEXT_BYTES,))
    monkeypatch.setattr(text, "WEIGHTS", (text.WEIGHTS[0], "0" * 64))
    with pytest.raises(InputError, match=f"expected a file with sha256 {'0' * 64}"):
        load_text_encoder("text:wordllama", (TEXT_BYTES,))


def test_a_column_of_texts_is_learned_and_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(line, "food") for line in FOOD] + [(line, "sport") for line in SPORT]
    sites = tmp_path / "sites"
    sites.mkdir()
    for at, name in enumerate(("north", "south")):
        own = rows[at::2]
        frame = pl.DataFrame(
            {"note": [line for line, _ in own], "age": list(range(len(own))), "y": [y for _, y in own]}
        )
        frame.write_csv(sites / f"{name}.csv")
    assert main(["federate", "schema", str(sites / "north.csv"), "--label", "y", "--text", "note"]) == 0
    drafted = capsys.readouterr().out
    assert "Left out beside the text: age." in drafted
    (sites / "schema.toml").write_text(drafted)
    out = tmp_path / "run"
    asked = ["--method", "fed-lda", "--body", "text:wordllama", "--out", str(out), "--jobs", "1", "--json", "--quiet"]
    assert main(["run", "--data", f"sites:{sites}", *asked]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy_mean_over_clients"] > 0.9
    new = pl.DataFrame({"note": ["she cooked a warm dinner", "they lost the league in the last minute"]})
    new.write_csv(tmp_path / "new.csv")
    assert main(["predict", str(out / "models" / "north"), "--data", str(tmp_path / "new.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == ["food", "sport"]
