"""Fill in all settings of a run that were left open, and refuse settings that contradict each other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedlog.algorithms import registry
from fedlog.data.catalog import digest_leaf_data, resolve_data
from fedlog.data.data_spec import DIVISION, DataSpec, refuse_settings
from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.files.names import hint_at_missing_path
from fedlog.models.body_files import find_path_in_name
from fedlog.models.encoders.names import is_encoder
from fedlog.models.encoders.onnx_encoder import find_external_weights
from fedlog.models.frozen import refuse_trained_weights
from fedlog.privacy.guarantee import NoiseSetting, Trust, Unit
from fedlog.settings.data import DataSettings
from fedlog.settings.execution import Execution
from fedlog.settings.presets import Preset, find_preset
from fedlog.settings.privacy import Aggregation, BodyTraining, SecureSumSettings
from fedlog.settings.promise import (
    DpSgd,
    Promise,
    check_largest_share,
    check_transport,
    normalise_clip,
    resolve_dp_sgd,
    resolve_promise,
    resolve_secure_sums,
)
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import (
    REFUSED_SHARE,
    REFUSED_SHARE_WITHOUT_PRIVACY,
    AdamMoments,
    Initialisation,
    Optimiser,
    RoundSettings,
    RunSettings,
)


@dataclass(frozen=True)
class ResolvedRun:
    """A run with every setting filled in; privacy, DP-SGD and secure sums are None if the run does not use them."""

    spec: RunSpec
    """The same settings as one flat specification with all defaults filled in, for `config.json` and the digest."""
    settings: RunSettings
    data: DataSpec
    promise: Promise | None
    dp_sgd: DpSgd | None
    sums: SecureSumSettings | None

    @property
    def digest(self) -> str:
        """A short digest: two runs have the same digest if and only if they are the same experiment."""
        return self.spec.digest


def resolve(spec: RunSpec, federation: Federation | None = None) -> ResolvedRun:
    """Fill in all defaults of the run's data set and method; raise InputError for settings that contradict each other.

    A `federation` made in Python is already divided among clients, so settings that divide data are then refused.
    """
    defaults = find_preset(spec.data)
    spec = replace(spec, body=spec.body or (defaults.body,), clip=normalise_clip(spec.clip))
    spec = _freeze_encoders(_append_feature_maps(spec))
    spec = replace(spec, body_file_sha256=_digest_files(_list_parameter_files(spec)))
    promise = resolve_promise(spec, NoiseSetting.FLOAT)
    dp_sgd = resolve_dp_sgd(spec, promise)
    sums = resolve_secure_sums(spec, promise, spec.refused_share)
    _check_bodies(spec)
    _check_dp_sgd(spec, dp_sgd)
    _check_promise(spec, promise)
    check_transport(spec.transport, promise, secure=sums is not None)
    check_largest_share(spec.largest_share, promise, secure=sums is not None)
    usual_share = REFUSED_SHARE_WITHOUT_PRIVACY if promise is None else REFUSED_SHARE
    settings = RunSettings(
        **vars(spec.extract_section(RoundSettings)),
        rounds=choose_rounds(spec, defaults),
        batch_size=defaults.find_batch_size(spec.method) if spec.batch_size is None else spec.batch_size,
        refused_share=usual_share if spec.refused_share is None else spec.refused_share,
        optimiser=spec.extract_section(Optimiser),
        execution=spec.extract_section(Execution),
    )
    data = make_data_spec(spec)
    if federation is None:
        data = resolve_data(data)
    else:
        own = ("data_dir", "label", "schema", "site_column", "split_seed")
        refuse_settings(data, (*DIVISION, *own), "a federation made in Python is already divided among clients")
        if data.rows_alone and federation.encodings and not federation.rows_alone:
            raise InputError(
                "--privacy record needs rows that are scaled independently of each other; federation "
                f"{federation.name} was scaled with the mean and spread of all its rows",
                hint="make the federation with rows_alone=True",
            )
    written = replace(
        spec,
        options=_resolve_options(spec.method, defaults.find_options(spec.method), list_given_options(spec)),
        carry=None,  # now one of the options
        codec_down=None if spec.codec_down == spec.codec else spec.codec_down,
        skip_below=spec.skip_below or None,
        **{name: getattr(data, name) for name in DIVISION},
        rounds=settings.rounds,
        batch_size=settings.batch_size,
        # Giving the usual share is the same experiment as leaving it out.
        refused_share=None if settings.refused_share == usual_share else settings.refused_share,
        aggregation=None if sums is None else Aggregation.SECURE,
    )
    if promise is not None:
        written = replace(written, trust=promise.trust, calibration=promise.calibration, noise=promise.noise)
    if dp_sgd is not None:
        written = replace(written, sgd_clip=dp_sgd.clip, sample_rate=dp_sgd.sample_rate)
    return ResolvedRun(written, settings, data, promise, dp_sgd, sums)


def add_data_digest(run: ResolvedRun, own: Federation | None) -> ResolvedRun:
    """Return the run with its data's digest: of the federation `own` if given, else of the files of a LEAF folder.

    The other named data sets have no digest, since they never change.
    """
    digest = digest_leaf_data(run.data) if own is None else own.content_digest()
    return replace(run, spec=replace(run.spec, data_sha256=digest))


def make_data_spec(spec: RunSpec) -> DataSpec:
    """Make a `DataSpec` of the data settings in a run's specification, before defaults are filled in."""
    given = vars(spec.extract_section(DataSettings)).items()
    named = {name: value for name, value in given if name not in ("data", "data_sha256")}
    paths = {name: Path(named[name]) for name in ("data_dir", "schema") if named[name] is not None}
    # If records are protected, a row's encoding must not depend on the other rows.
    return DataSpec(spec.data, **named | paths, seed=spec.seed, rows_alone=spec.privacy is Unit.RECORD)


def choose_rounds(spec: RunSpec, defaults: Preset) -> int:
    """Return the number of rounds: that of the specification, else the method's own, else the preset's.

    Only a method that exchanges messages once has a number of its own: 1.
    """
    if spec.rounds is not None:
        return spec.rounds
    return registry.find_method_rounds(spec.method) or defaults.rounds


def list_given_options(spec: RunSpec) -> Mapping[str, Any]:
    """Return the method's options that were given: those in `options`, and `carry`, which has a flag of its own."""
    return spec.options if spec.carry is None else {**spec.options, "carry": spec.carry}


def _resolve_options(method: str, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of the method, each with the given value, else the preset's value, else the method's default.

    Values get the type of their option, so that `--set alpha=1` and `alpha = 1.0` in a file are the same experiment.
    """
    known = registry.list_options(method)
    usual = {name: value for name, value in defaults.items() if name in known}
    options = registry.read_options(method, {**known, **usual, **given})
    return {name: getattr(value, "value", value) for name, value in options.items()}


def _append_feature_maps(spec: RunSpec) -> RunSpec:
    """Append the run's feature maps to the name of each body, as in `identity+project:64`."""
    asked = {"project": spec.project, "expand": spec.expand, "buckets": spec.buckets}
    maps = "".join(f"+{name}:{number}" for name, number in asked.items() if number is not None)
    if maps and not all(is_encoder(name) for name in spec.body):
        flags = ", ".join(f"--{name}" for name, number in asked.items() if number is not None)
        raise InputError(
            f"expected a frozen encoder as the body with {flags}, found: {', '.join(spec.body)}",
            hint="--body identity",
        )
    return replace(spec, body=tuple(name + maps for name in spec.body), project=None, expand=None, buckets=None)


def _freeze_encoders(spec: RunSpec) -> RunSpec:
    """Set `body_training` to frozen if the body is an encoder (a pretrained or fixed network that is never trained)."""
    encoders = [name for name in spec.body if is_encoder(name)]
    if not encoders:
        return spec
    if len(spec.body) > 1:
        raise InputError(
            f"with a frozen encoder all clients need the same body, found: {', '.join(spec.body)}",
            hint="give --body once",
        )
    if spec.body_training is BodyTraining.DP_SGD:
        raise InputError(
            f"body {encoders[0]} is frozen, so DP-SGD cannot train it", hint="leave out --body-training dp-sgd"
        )
    return replace(spec, body_training=BodyTraining.FROZEN)


def _check_bodies(spec: RunSpec) -> None:
    frozen = spec.body_training is BodyTraining.FROZEN
    if frozen and (len(spec.body) > 1 or spec.initialisation is Initialisation.SEPARATE):
        raise InputError(
            "frozen bodies must be the same for all clients: features of different bodies cannot be added up",
            hint="give one --body, and --initialisation shared",
        )


def _check_dp_sgd(spec: RunSpec, dp_sgd: DpSgd | None) -> None:
    if dp_sgd is None:
        return
    if len(spec.body) > 1:
        raise InputError(
            f"DP-SGD needs one body for all clients, found: {', '.join(spec.body)}", hint="give --body once"
        )
    if spec.moments is not AdamMoments.EPOCH:
        raise InputError(f"DP-SGD cannot keep Adam's moments: --moments {spec.moments}", hint="leave out --moments")
    if spec.weight_decay:
        raise InputError(
            f"DP-SGD has no weight decay: --weight-decay {spec.weight_decay:g}", hint="leave out --weight-decay"
        )


def _check_promise(spec: RunSpec, promise: Promise | None) -> None:
    """Raise InputError for settings that would break the privacy promise."""
    if promise is None:
        return
    if promise.unit is Unit.RECORD:
        _check_record_privacy(spec)
    if promise.unit is Unit.CLIENT and promise.trust is not Trust.LOCAL:
        _check_client_privacy(spec, promise.trust)
    if spec.noise_draw is not None and promise.noise is NoiseSetting.DISCRETE:
        raise InputError(
            f"--noise-draw {spec.noise_draw} needs float noise, found: discrete noise, which differs in every run",
            hint="leave out --noise-draw, or use --noise float",
        )
    if spec.stop_at_accuracy is not None:
        raise InputError(
            "--stop-at-accuracy cannot be used with --privacy: when to stop would depend on private data, and the "
            "guarantee does not cover that",
            hint="leave out --stop-at-accuracy",
        )


def _check_record_privacy(spec: RunSpec) -> None:
    if spec.body_training is None:
        never_trains = registry.find_method_rounds(spec.method) is not None
        doubt = "may have been trained on it" if never_trains else f"is trained on it by {spec.method}"
        raise InputError(
            f"--privacy record holds only for bodies that never saw the private data, and body {', '.join(spec.body)} "
            f"{doubt}",
            hint="--body-training frozen (with --body-file FILE for a body trained on other data), --body-training "
            "dp-sgd, or --privacy client",
        )
    for path in _list_parameter_files(spec):
        if path.suffix != ".onnx":  # an ONNX file does not say which data it was trained on: we trust the user
            refuse_trained_weights(path)


def _check_client_privacy(spec: RunSpec, trust: Trust) -> None:
    if len(spec.body) > 1:
        raise InputError(
            f"--privacy client with {trust} noise needs the same body for all clients, found: {', '.join(spec.body)}; "
            "with several bodies, adding a client would change which bodies the other clients get",
            hint="--trust local, or give --body once",
        )
    if spec.participation < 1:
        # The draw depends on the number of clients, so adding a client would change other clients' messages too.
        raise InputError(
            f"--privacy client with {trust} noise needs every client in every round, found: participation "
            f"{spec.participation:g}",
            hint="leave out --participation, or --trust local",
        )


def _list_parameter_files(spec: RunSpec) -> list[Path]:
    """List the parameter files of a run: the files in the names of bodies, then `body_file`."""
    return [Path(path) for path in (*map(find_path_in_name, spec.body), spec.body_file) if path]


def _digest_files(files: list[Path]) -> str | None:
    """Compute one digest of all these files, including the weight files of ONNX files; return None without files."""
    found = hashlib.sha256()
    for path in files:
        try:
            content = path.read_bytes()
            found.update(content)
            for weight_file in find_external_weights(path, content) if path.suffix == ".onnx" else ():
                found.update(weight_file.read_bytes())
        except OSError as error:
            raise InputError(
                f"cannot read the body's parameters {path}: {error.strerror}",
                hint="is it a file that you may read?" if path.exists() else hint_at_missing_path(path),
            ) from error
    return found.hexdigest() if files else None
