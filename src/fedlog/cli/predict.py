"""`fedlog predict MODEL --data new.csv`: predict labels and probabilities of new records with a saved model."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedlog.cli.command import add_allow_code_flag

if TYPE_CHECKING:
    from fedlog.models.model import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog predict`."""
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="SITE/models/RUN of a site, or RUN/models/CLIENT of `fedlog run`"
    )
    parser.add_argument("--data", help="a table without the label column, an .npz file, or a folder of images")
    parser.add_argument(
        "--level",
        type=float,
        metavar="P",
        help="the probability of the intervals around predicted numbers (default: 0.9)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout instead of CSV")
    parser.add_argument(
        "--onnx", type=Path, metavar="FILE", help="write the model as an ONNX file, and check it against PyTorch"
    )
    add_allow_code_flag(parser)
    parser.set_defaults(handler=predict_and_export)


def predict_and_export(args: argparse.Namespace) -> None:
    """Print predictions if `--data` is given, as CSV or JSON; write the model as ONNX if `--onnx` is given."""
    from fedlog.errors import InputError

    if args.data is None and args.onnx is None:
        raise InputError(
            "expected --data, --onnx or both, found neither",
            hint="--data FILE predicts the records of FILE, --onnx FILE writes the model",
        )
    from fedlog.models.model_folder import load_model, read_unseen_classes
    from fedlog.models.onnx_export import export_onnx

    model = load_model(args.model)
    if args.onnx is not None:
        worst = export_onnx(model, args.onnx)
        print(f"wrote {args.onnx}; onnxruntime and PyTorch differ by at most {worst:.1e}", file=sys.stderr)
    if args.data is None:
        return
    if model.schema.target_range is not None:
        _print_predicted_numbers(model, args)
        return
    if args.level is not None:
        raise InputError(
            f"--level is for a model that predicts a number, but {args.model} predicts classes",
            hint="leave out --level",
        )
    probabilities = model.predict_proba(args.data)
    classes = model.schema.label_values
    labels = [classes[best] for best in probabilities.argmax(axis=1).tolist()]
    if unseen := read_unseen_classes(args.model, model):
        print(
            f"warning: no training row of this model's site had {', '.join(unseen)}; the model knows about that only "
            "from the other sites",
            file=sys.stderr,
        )
    files = _list_images(args.data)
    if args.json:
        rows = [[round(value, 6) for value in row] for row in probabilities.tolist()]
        labelled = {**({"files": files} if files else {}), "classes": list(classes), "labels": labels}
        print(json.dumps({**labelled, "probabilities": rows, **({"unseen_classes": unseen} if unseen else {})}))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*(["file"] if files else []), "label", *(f"p_{name}" for name in classes)])
    for at, (label, row) in enumerate(zip(labels, probabilities.tolist(), strict=True)):
        writer.writerow([*files[at : at + 1], label, *(f"{value:.6f}" for value in row)])


def _list_images(data: str) -> list[str]:
    """List the names of the images in a folder, in the order in which they are read; [] if `data` is not a folder."""
    from fedlog.data.images import list_images

    return [path.name for path in list_images(Path(data))] if Path(data).is_dir() else []


def _print_predicted_numbers(model: Model, args: argparse.Namespace) -> None:
    """Print the predicted numbers with their intervals, as CSV or JSON."""
    from fedlog.core.heads.regression import INTERVAL_LEVEL

    numbers = model.predict(args.data).tolist()
    level = INTERVAL_LEVEL if args.level is None else args.level
    low, high = (ends.tolist() for ends in model.predict_interval(args.data, level))
    if args.json:
        print(json.dumps({"number": model.schema.label_column, "predicted": numbers, "low": low, "high": high}))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([model.schema.label_column, "low", "high"])
    writer.writerows([f"{value:.6g}" for value in row] for row in zip(numbers, low, high, strict=True))
