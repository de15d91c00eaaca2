"""Twenty sites as real processes on one machine: keys from a folder, rounds with everyone, a scrape while they run."""

from __future__ import annotations

import datetime as dt
import shutil
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from three_sites import SCHEMA, write_table

from fedlog.data.schema import dump_schema
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.ops.processes import find_free_port, stop_programs
from fedlog.flower.ops.run import run_federation
from fedlog.flower.ops.server import create_server, register_sites_in_folder, run_server
from fedlog.flower.ops.site import create_site, run_site
from fedlog.flower.ops.status import render_server_metrics, render_server_page
from fedlog.flower.ops.status_server import serve_status
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RoundRules

pytestmark = pytest.mark.slow
NAMES = [f"site-{number:02}" for number in range(1, 21)]


def test_twenty_sites_take_part_in_every_round(tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(dump_schema(SCHEMA))
    server, port = ServerFolder(tmp_path / "server"), find_free_port()
    create_server(server, ServerConfig(("127.0.0.1",), "127.0.0.1", port), schema, dt.datetime.now(dt.UTC))
    keys = tmp_path / "keys"
    keys.mkdir()
    sites = []
    for name in NAMES:
        folder = SiteFolder(tmp_path / name)
        create_site(folder, SiteConfig(name, f"127.0.0.1:{port}"), server.certificates.authority, schema)
        folder.store_data_and_body(str(write_table(folder.path / "data.csv", name)), "mlp:8")
        shutil.copy(folder.public_key, keys / f"{name}.pub")
        sites.append(folder)
    with ExitStack() as stack:
        stack.enter_context(run_server(server, print))
        assert sorted(register_sites_in_folder(server, keys, print)) == NAMES
        running = [stack.enter_context(run_site(folder, print)) for folder in sites]
        pages = (lambda: render_server_metrics(server)), (lambda: render_server_page(server))
        url = stack.enter_context(serve_status("0", *pages))
        plan = Plan("many", rounds=2, options={"epochs": 1, "learning_rate": 0.01})
        report = run_federation(server, plan, RoundRules(len(NAMES), 900.0), print)
        with urllib.request.urlopen(f"{url}metrics") as answer:
            families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
        stop_programs(*running)
    assert [site["name"] for site in report["sites"]] == NAMES
    uploads = [event["sites"] for event in read_events(server.event_log) if event["event"] == "uploads"]
    assert uploads == [NAMES, NAMES]
    assert families["fedlog_sites_connected"].samples[0].value == len(NAMES)
    assert families["fedlog_rounds"].samples[0].value == 2
