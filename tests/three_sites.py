"""Three sites with small tables and different bodies, and the same federation for the simulator."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from flwr.app import Message
from torch import nn

from fedlog.core.keys import Key
from fedlog.data.schema import Feature, FeatureKind, Schema, dump_schema
from fedlog.data.sites import join_sites
from fedlog.engine.clients import make_model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import wrap_frame
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.site_requests import Clock
from fedlog.flower.site.client_app import answer_with_frame
from fedlog.flower.site.data import load_body, load_data
from fedlog.settings.training import RunSettings

BODIES = {"east": "mlp:8", "north": "mlp:12,8", "south": "mlp:16,8"}
SCHEMA = Schema(
    "y",
    ("label-one", "label-two", "label-three"),
    (
        Feature("x1", FeatureKind.NUMERIC),
        Feature("x2", FeatureKind.NUMERIC),
        Feature("z", FeatureKind.CATEGORICAL, ("p", "q")),
    ),
)


def normalised() -> nn.Module:
    """A body with batch normalisation, named `three_sites:normalised`."""
    return nn.Sequential(nn.Linear(SCHEMA.shape[0], 8), nn.BatchNorm1d(8))


def write_table(path: Path, name: str, rows: int = 60, classes: Sequence[int] = (0, 1, 2)) -> Path:
    """A table whose classes overlap a little."""
    generator = Key(7).child(name).numpy()
    y = np.array(classes)[generator.integers(0, len(classes), rows)]
    frame = pl.DataFrame(
        {
            "x1": generator.normal(size=rows) + y,
            "x2": [None if i % 13 == 0 else float(v) for i, v in enumerate(generator.normal(size=rows) - 2 * y)],
            "z": [("p", "q", "r")[i % 3] for i in range(rows)],
            "y": [SCHEMA.label_values[label] for label in y],
        }
    )
    frame.write_csv(path)
    return path


def fill_site(folder: SiteFolder, name: str, body: str) -> SiteFolder:
    """A site's folder with data and a body, as after `join` and the first `site`, but without a key."""
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.schema_file.write_text(dump_schema(SCHEMA))
    table = write_table(folder.path / "data.csv", name)
    folder.write_config(SiteConfig(name, "127.0.0.1:1", str(table), body))
    return folder


def make_server(folder: ServerFolder) -> ServerFolder:
    """A server's folder with nothing but the schema: enough for rounds in one process."""
    folder.path.mkdir()
    folder.schema_file.write_text(dump_schema(SCHEMA))
    return folder


def quick_clock() -> Clock:
    """Time that passes only when someone sleeps, and then quickly."""
    time = [0.0]

    def sleep(seconds: float) -> None:
        time[0] += 10 * seconds

    return Clock(lambda: time[0], sleep)


def events_named(server: ServerFolder, name: str) -> list[dict[str, object]]:
    """What the server's log says of this kind of event."""
    return [dict(event) for event in read_events(server.event_log) if event["event"] == name]


def simulation(sites: Collection[SiteFolder], plan: Plan) -> Simulation:
    """The same seeds, shards and bodies in the simulator: the sites' encoded records in one pool."""
    configs = [folder.read_config() for folder in sites]
    loaded = [load_data(folder, config) for folder, config in zip(sites, configs, strict=True)]
    bodies = [load_body(config, SCHEMA.shape, plan.feature_clip) for config in configs]
    federation = join_sites(loaded, SCHEMA, "sites")
    shape = make_model_plan(federation, bodies)
    course = RunSettings(
        rounds=plan.rounds,
        seed=plan.seed,
        codec=plan.codec,
        codec_down=plan.codec_down,
        down=plan.down,
        world=plan.world,
        skip_below=plan.skip_below,
        largest_share=plan.largest_share,
        optimiser=plan.optimiser,
    )
    algorithm = plan.build_algorithm(shape.n_class, shape.width)
    engine = Engine(Settings(plan.batch_size, optimiser=plan.optimiser))
    return Simulation(algorithm, federation, bodies, shape, engine, course).start()


@dataclass(frozen=True)
class Node:
    node_id: int
    name: str
    last_activated_at: str = "2030"


@dataclass
class InProcess:
    """Flower's messages without Flower: each site answers when it is asked for its reply."""

    sites: dict[str, SiteFolder]
    silent: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    replies: dict[str, Message] = field(default_factory=dict)
    sent: int = 0

    @property
    def names(self) -> Sequence[str]:
        return list(self.sites)

    def get_nodes(self) -> Iterable[Node]:
        return [Node(at, name) for at, name in enumerate(self.names, start=10) if name not in self.absent]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identifiers = []
        for message in messages:
            self.sent += 1
            identifier = f"m{self.sent}"
            message.metadata.__dict__["_message_id"] = identifier
            message.metadata.__dict__["_src_node_id"] = 1
            name = self.names[message.metadata.dst_node_id - 10]
            if name not in self.silent:
                content = wrap_frame(answer_with_frame(message, self.sites[name]))
                self.replies[identifier] = Message(content, reply_to=message)
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(identifier) for identifier in message_ids if identifier in self.replies]


def assert_tells_nothing_of(site: SiteFolder, logs: Iterable[Path]) -> None:
    """No number of the site's table with more than five digits, and no label, stands in any file of these folders."""
    words = Path(site.read_config().data or "").read_text().replace("\n", ",").split(",")
    secrets = {word for word in words if len(word) > 6} | set(SCHEMA.label_values)
    assert len(secrets) > 60
    for path in (path for folder in logs for path in folder.rglob("*") if path.is_file()):
        text = path.read_text(errors="replace")
        assert [word for word in secrets if word in text] == [], path
