"""A schema that is written and read again is the same schema, and a bad one is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.data.schema import Feature, FeatureKind, Schema, dump_schema, parse_schema
from fedlog.errors import InputError

# Every text a TOML file can hold, quotes, backslashes, control characters and DEL among them; surrogates are no text.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    columns = draw(st.lists(TEXTS, min_size=3, max_size=6, unique=True))
    labels = tuple(draw(st.lists(TEXTS, min_size=2, max_size=4, unique=True)))
    features = tuple(
        Feature(name, FeatureKind.NUMERIC)
        if draw(st.booleans())
        else Feature(name, FeatureKind.CATEGORICAL, tuple(draw(st.lists(TEXTS, max_size=4, unique=True))))
        for name in columns[2:]
    )
    split = draw(st.sampled_from(["group", "time", "none"]))
    shape = tuple(draw(st.lists(st.integers(1, 300), max_size=3)))
    ends = sorted(draw(st.tuples(st.floats(-1e30, 0), st.floats(1e-30, 1e30))))
    return Schema(
        columns[0],
        labels,
        () if shape else features,
        shape,
        input_range=(ends[0], ends[1]) if shape and draw(st.booleans()) else None,
        group_column=columns[1] if split == "group" else None,
        time_column=columns[1] if split == "time" else None,
    )


@settings(deadline=None, max_examples=150)
@given(schemas(), st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20), max_size=3))
def test_a_written_schema_reads_back_the_same(schema: Schema, comments: list[str]) -> None:
    read = parse_schema(dump_schema(schema, tuple(comments)), "test")
    assert read == schema
    assert read.digest == schema.digest


@settings(deadline=None, max_examples=50)
@given(schemas(), TEXTS)
def test_the_digest_changes_with_what_the_sites_agreed_on(schema: Schema, extra: str) -> None:
    if extra in schema.label_values:
        return
    assert replace(schema, label_values=(*schema.label_values, extra)).digest != schema.digest
    if schema.input_shape:
        ends = (0.0, 1.0) if schema.input_range is None else None
        assert replace(schema, input_range=ends).digest != schema.digest
    # The column names of the label and of the split are a site's own business.
    elsewhere = replace(schema, label_column="elsewhere", group_column=None, time_column=None)
    assert elsewhere.digest == schema.digest


GOOD = """
version = 1
[label]
column = "y"
values = ["a", "b"]
[[feature]]
column = "x"
kind = "numeric"
"""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("version = 1", "version = 2"), "version"),
        (('["a", "b"]', '["a"]'), "at least 2 label values"),
        (('["a", "b"]', '["a", "a"]'), "more than once: a"),
        (('["a", "b"]', "[0, 1]"), "list of texts"),
        (('"numeric"', '"number"'), "found: 'number'"),
        (('column = "x"', 'column = "y"'), "must not be features"),
        (("[label]", "[lable]"), "lable"),
        (('kind = "numeric"', 'kind = "categorical"'), "categories"),
        (("[[feature]]", "[feature]"), "[[feature]]"),
        (('kind = "numeric"', 'kind = "numeric"\n[input]\nshape = [3]'), "both"),
        (
            ('[[feature]]\ncolumn = "x"\nkind = "numeric"', "[input]\nshape = [3]\nrange = [1, 0]"),
            "range = [low, high]",
        ),
        (("version = 1", "version = ="), "TOML"),
    ],
)
def test_a_bad_schema_is_refused_and_named(change: tuple[str, str], says: str) -> None:
    parse_schema(GOOD, "good.toml")
    with pytest.raises(InputError) as error:
        parse_schema(GOOD.replace(*change), "bad.toml")
    assert says in str(error.value)
    assert "bad.toml" in str(error.value)
