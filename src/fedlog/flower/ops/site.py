"""What people at a site do: make the site's folder and keys, and run its SuperNode."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlog.data.schema import load_schema
from fedlog.errors import InputError
from fedlog.files.toml import format_toml_value
from fedlog.flower.folders.folder import check_site_or_run_name
from fedlog.flower.folders.keys import (
    KEY,
    SECRET_FOLDER_MODE,
    check_authority_certificate,
    check_secret,
    create_site_key,
)
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.ops.processes import (
    Command,
    RunningProgram,
    Say,
    find_free_port,
    find_program,
    make_flower_environment,
    start_program,
)
from fedlog.flower.site.guard import write_guard_programs
from fedlog.flower.site.site_release_log import restore_site_release_log


def create_site(
    folder: SiteFolder, config: SiteConfig, authority: Path, schema: Path, release_log: Path | None = None
) -> str:
    """Make the site's folder with keys, schema and the authority's certificate; return the public key as one line.

    If the same rows have taken part in runs before, with another folder, `release_log` is the release log in
    that folder.
    """
    check_site_or_run_name(config.name)
    load_schema(schema)
    check_authority_certificate(authority)
    if folder.config_file.exists():
        raise InputError(
            f"expected a new folder, found the folder of a site: {folder.path}",
            hint="`fedlog federate rekey` makes new keys for it",
        )
    if release_log is not None:
        restore_site_release_log(folder, release_log)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.path.chmod(SECRET_FOLDER_MODE)
    line = create_site_key(folder.private_key, folder.public_key, config.name)
    for source, target in ((authority, folder.authority), (schema, folder.schema_file)):
        if source.resolve() != target.resolve():
            shutil.copyfile(source, target)
    folder.write_config(config)
    return line


def replace_keys(folder: SiteFolder) -> str:
    """Make a new key pair for the site, remove its signing key for secure sums, and return the public key as one line.

    The state of runs, the models and the release log stay: they belong to the site's rows, not to its keys.
    """
    name = folder.read_config().name
    drafts = folder.path / "site.key.new", folder.path / "site.pub.new"
    drafts[0].unlink(missing_ok=True)  # left from an attempt that was interrupted
    line = create_site_key(*drafts, name)
    (folder.path / KEY).unlink(missing_ok=True)
    for draft, target in zip(drafts, (folder.private_key, folder.public_key), strict=True):
        draft.replace(target)
    return line


def make_supernode_command(folder: SiteFolder, config: SiteConfig, port: int) -> Command:
    """Make the command that starts Flower's SuperNode with the site's key; its local API is on the loopback only."""
    find_program("flower-supernode")
    return Command(
        (
            *(sys.executable, "-m", "fedlog.flower.site.supernode"),
            *("--superlink", config.server, "--root-certificates", str(folder.authority.resolve())),
            *("--auth-supernode-private-key", str(folder.private_key.resolve())),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--node-config", f"folder={format_toml_value(str(folder.path.resolve()))}"),
        ),
        make_flower_environment(folder.flower_home.resolve(), first_on_path=folder.programs.resolve()),
    )


@contextmanager
def run_site(folder: SiteFolder, say: Say) -> Iterator[RunningProgram]:
    """Run the site's SuperNode until the block ends."""
    check_secret(folder.private_key)
    write_guard_programs(folder.programs)
    command = make_supernode_command(folder, folder.read_config(), find_free_port())
    running = start_program(command, folder.logs / "supernode.log", say)
    try:
        yield running
    finally:
        running.stop()
