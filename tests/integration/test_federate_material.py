"""Certificates, keys, folders and the gate, without any Flower process."""

from __future__ import annotations

import asyncio
import datetime as dt
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import threading
from base64 import b64encode
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlog.cli.main import main
from fedlog.data.schema import Feature, FeatureKind, Schema, dump_schema
from fedlog.errors import InputError, RunError
from fedlog.flower.folders.folder import check_site_or_run_name
from fedlog.flower.folders.keys import (
    CertificateFolder,
    check_secret,
    compute_fingerprint,
    count_days_left,
    create_certificates,
    create_site_key,
    encode_public_key,
    read_public_key,
    renew_server_certificate,
    write_secret,
)
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder, parse_server_address
from fedlog.flower.ops.processes import Command, find_free_port, run_command, start_program, wait_for_port
from fedlog.flower.protocol.check_in import AHEAD_SECONDS, BEHIND_SECONDS
from fedlog.flower.server.callers import RegisteredKeys, verify_caller
from fedlog.flower.server.gate import Gate
from fedlog.flower.site.guard import GUARDED, REFUSED, ForkingExecutor, run_worker, serve_task, write_guard_programs

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFolder:
    files = CertificateFolder(tmp_path / "certificates")
    create_certificates(files, ("localhost", "10.1.2.3"), dt.datetime.now(dt.UTC))
    return files


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_for_their_owner_alone(files: CertificateFolder, tmp_path: Path) -> None:
    create_site_key(tmp_path / "site.key", tmp_path / "site.pub", "a")
    for secret in (files.authority_key, files.server_key, tmp_path / "site.key"):
        assert mode(secret) == 0o600
        check_secret(secret)
    files.server_key.chmod(0o644)
    with pytest.raises(InputError, match="mode 0644"):
        check_secret(files.server_key)
    with pytest.raises(InputError, match="exists already"):
        write_secret(tmp_path / "site.key", b"")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """A TLS handshake in memory; raises as a socket would."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(incoming, outgoing, server_hostname=host)
    theirs = server.wrap_bio(outgoing, incoming, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def contexts(files: CertificateFolder) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.server, files.server_key)
    client = ssl.create_default_context(cafile=str(files.authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    return server, client


def test_the_certificate_holds_for_its_hosts_and_no_other(files: CertificateFolder) -> None:
    extensions = x509.load_pem_x509_certificate(files.server.read_bytes()).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["localhost", "10.1.2.3", "127.0.0.1"]
    for host in ("localhost", "10.1.2.3", "127.0.0.1"):
        handshake(*contexts(files), host)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(*contexts(files), "elsewhere.example")


def test_a_renewed_certificate_holds_under_the_same_authority(files: CertificateFolder) -> None:
    authority, server = files.authority.read_bytes(), files.server.read_bytes()
    renew_server_certificate(files, ("new.example",), dt.datetime.now(dt.UTC))
    assert files.authority.read_bytes() == authority
    assert files.server.read_bytes() != server
    assert 396 < count_days_left(files, dt.datetime.now(dt.UTC)) < 398
    handshake(*contexts(files), "new.example")


def test_another_authority_is_refused(files: CertificateFolder, tmp_path: Path) -> None:
    other = CertificateFolder(tmp_path / "other")
    create_certificates(other, ("localhost",), dt.datetime.now(dt.UTC))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(contexts(files)[0], contexts(other)[1], "localhost")


@pytest.mark.parametrize("host", ["https://a.example", "a.example:8443", "", "a b", "-a.example", "a" * 64])
def test_a_bad_host_name_leaves_nothing_behind(tmp_path: Path, host: str) -> None:
    files = CertificateFolder(tmp_path / "c")
    with pytest.raises(InputError, match="host name"):
        create_certificates(files, (host,), NOW)
    assert not files.authority_key.exists()


def test_a_bad_port_or_certificate_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "schema.toml").write_text(dump_schema(Schema("y", ("a", "b"), (Feature("x", FeatureKind.NUMERIC),))))
    (tmp_path / "rows.csv").write_text("x,y\n1,a\n")
    schema = ["--schema", str(tmp_path / "schema.toml")]
    server, site = tmp_path / "server", tmp_path / "site"
    for port in ("0", "99999"):
        assert main(["federate", "init", str(server), *schema, "--host", "localhost", "--port", port]) == 2
        assert f"expected a port from 1 to 65535, found: {port}" in capsys.readouterr().err
    for name, found in (("rows.csv", "no certificate in"), ("none.crt", "none")):
        ca = str(tmp_path / name)
        assert main(["federate", "join", str(site), *schema, "--server", "h", "--ca", ca, "--name", "north"]) == 2
        assert f"found {found}: {ca}" in capsys.readouterr().err
    assert not server.exists()
    assert not site.exists()


def test_public_keys(tmp_path: Path) -> None:
    line = create_site_key(tmp_path / "k", tmp_path / "k.pub", "north")
    assert (tmp_path / "k.pub").read_text() == line + "\n"
    assert compute_fingerprint(line) == compute_fingerprint(line.rsplit(" ", 1)[0] + " another comment")
    assert read_public_key(line).curve.name == "secp384r1"
    assert "PRIVATE" not in line
    with pytest.raises(InputError, match="expected"):
        read_public_key("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7vZ0t5nJkq1kq0cJ8n6Yw1uJ8Q1m0H0w9f4c0nJ0aa x")
    with pytest.raises(InputError, match="expected"):
        read_public_key("nonsense")


def test_folders_remember(tmp_path: Path) -> None:
    server = ServerFolder(tmp_path / "s")
    config = ServerConfig(('odd"name', "b"), "127.0.0.1", 9)
    server.write_config(config)
    assert server.read_config() == config
    server.add_registered_site("north", "17", "key")
    assert server.read_registered_sites() == {"north": "17"}
    server.remove_registered_site("north")
    assert server.read_registered_sites() == {}
    site = SiteFolder(tmp_path / "c")
    site.write_config(SiteConfig("north", "h:1"))
    with pytest.raises(InputError, match="expected data"):
        site.store_data_and_body(None, None)
    assert site.store_data_and_body("m:f", "mlp:8") == site.read_config() == SiteConfig("north", "h:1", "m:f", "mlp:8")
    assert site.store_data_and_body(None, "mlp:9").data == "m:f"
    with pytest.raises(InputError, match=r"federation\.toml"):
        ServerFolder(tmp_path / "none").read_config()


def test_paths_hold_wherever_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = SiteFolder(tmp_path / "c")
    site.write_config(SiteConfig("north", "h:1"))
    (tmp_path / "rows.csv").touch()
    monkeypatch.chdir(tmp_path)
    chosen = site.store_data_and_body("rows.csv", "frozen:weights.safetensors")
    assert (chosen.data, chosen.body) == (str(tmp_path / "rows.csv"), f"frozen:{tmp_path / 'weights.safetensors'}")
    assert site.store_data_and_body(None, "onnx:encoder.onnx+unit").body == f"onnx:{tmp_path / 'encoder.onnx'}+unit"


def test_names_and_addresses() -> None:
    assert parse_server_address("a.example") == "a.example:8443"
    assert parse_server_address("a.example:1") == "a.example:1"
    for bad in ("", ":1", "a:0", "a:b", "https://a:1", "a:70000"):
        with pytest.raises(InputError, match="HOST"):
            parse_server_address(bad)
    assert check_site_or_run_name("north-1") == "north-1"
    for bad in ("", "North", "a/b", "..", "a" * 33, "a b"):
        with pytest.raises(InputError, match="expected a name"):
            check_site_or_run_name(bad)


class Upstream:
    """A stand-in for a SuperLink that lists the requests it gets."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, str | None]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request.url.path, request.content, request.headers.get("flwr-signature")))
        return httpx.Response(418, content=b"reply", headers={"x-flwr": "1", "connection": "close"})


KEY, STRANGER = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))


def signed(key: ec.EllipticCurvePrivateKey = KEY, seconds_ago: float = 0.0) -> dict[str, str]:
    """The headers that Flower's own SuperNode would send."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    time = (now() - dt.timedelta(seconds=seconds_ago)).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: time,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, time.encode())).decode(),
    }


def through_gate(
    sites: Path, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[httpx.Response, Upstream]:
    upstream = Upstream()
    line = KEY.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (sites / "north.pub").write_bytes(line + b" north\n")

    async def talk() -> httpx.Response:
        inside = httpx.AsyncClient(transport=httpx.MockTransport(upstream))
        gate: Any = Gate("https://127.0.0.1:1", inside, RegisteredKeys(sites), 100_000)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="https://gate") as client:
            return await client.request(method, path, content=body, headers=headers)

    return asyncio.run(talk()), upstream


def test_the_gate_forwards_a_signed_fleet_call_unchanged(tmp_path: Path) -> None:
    headers = signed()
    answer, upstream = through_gate(tmp_path, "POST", "/v1/fleet/pull-messages", b"abc", headers)
    assert upstream.seen == [("/v1/fleet/pull-messages", b"abc", headers["flwr-signature"])]
    assert (answer.status_code, answer.content, answer.headers["x-flwr"]) == (418, b"reply", "1")
    assert "connection" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/control/start-run", 404),
        ("POST", "/v1/runtime/acquire-task", 404),
        ("POST", "/v1/fleet/register-node", 404),
        ("POST", "/v1/fleet/../control/start-run", 404),
        ("POST", "/v1/fleet/%2e%2e/control/start-run", 404),
        ("POST", "//v1/fleet/x", 404),
        ("GET", "/v1/fleet/pull-messages", 404),
        ("GET", "/health", 200),
        ("POST", "/v1/fleet/register-node%3Fx", 404),
        ("POST", "/v1/fleet/%2572egister-node", 404),
        ("POST", "/v1/fleet/%72egister-node", 404),
        ("POST", "/v1/fleet/register-node?x", 404),
        ("POST", "/v1/fleet/register-node/", 404),
        ("POST", "/v1/fleet/pull-messages?x=1", 404),
        ("POST", "/v1/fleet/pull-messages%2f..%2fregister-node", 404),
        ("POST", "/v1//fleet/pull-messages", 404),
        ("POST", "/v1/fleet/%70ull-messages", 404),  # what it decodes to would pass; the raw path decides
    ],
)
def test_the_gate_keeps_everything_else_out(tmp_path: Path, method: str, path: str, status: int) -> None:
    answer, upstream = through_gate(tmp_path, method, path, b"", signed())
    assert answer.status_code == status
    assert upstream.seen == []


def test_the_gate_refuses_a_call_that_was_not_signed_just_now_with_the_key_it_names(tmp_path: Path) -> None:
    good, other = signed(), signed(STRANGER)
    unsigned = [{}, *({**good, name: "AAAA"} for name in good), *({k: good[k] for k in good if k != n} for n in good)]
    swapped = {**other, "flwr-public-key": good["flwr-public-key"]}
    naive = {**good, "flwr-timestamp": "2030-01-01T00:00:00"}
    for headers in (*unsigned, swapped, naive, signed(seconds_ago=400), signed(seconds_ago=-60)):
        answer, upstream = through_gate(tmp_path, "POST", "/v1/fleet/pull-messages", b"abc", headers)
        assert (answer.status_code, upstream.seen) == (401, [])


def test_the_gate_reads_no_body_before_it_knows_the_key() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(event: Any) -> None:
        sent.append(event)

    gate = Gate("https://127.0.0.1:1", httpx.AsyncClient(), RegisteredKeys(Path("nowhere")))
    path = "/v1/fleet/push-object"
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [],
        "raw_path": path.encode(),
        "query_string": b"",
    }
    asyncio.run(gate(scope, receive, send))
    assert sent[0]["status"] == 401


def test_the_gate_refuses_a_body_over_its_limit_and_a_smaller_one_of_a_key_that_is_not_registered(
    tmp_path: Path,
) -> None:
    for key, size, status in ((KEY, 100_001, 413), (KEY, 100_000, 418), (STRANGER, 65_537, 413), (STRANGER, 9, 418)):
        answer, upstream = through_gate(tmp_path, "POST", "/v1/fleet/push-object", b"x" * size, signed(key))
        assert (answer.status_code, len(upstream.seen)) == (status, int(status == 418))


def test_the_gate_follows_the_list_of_registered_keys_and_flowers_clock(tmp_path: Path) -> None:
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    assert (SYSTEM_TIME_TOLERANCE + TIMESTAMP_TOLERANCE, SYSTEM_TIME_TOLERANCE) == (BEHIND_SECONDS, AHEAD_SECONDS)
    server = ServerFolder(tmp_path)
    callers = RegisteredKeys(server.sites)
    caller = verify_caller([(n.encode(), v.encode()) for n, v in signed().items()], dt.datetime.now(dt.UTC))
    assert caller is not None
    assert caller.is_recent
    assert callers.find_site_name(caller.key) is None
    line = KEY.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    server.add_registered_site("north", "17", line)
    assert callers.find_site_name(caller.key) == "north"
    server.remove_registered_site("north")
    assert callers.find_site_name(caller.key) is None


def test_keys_are_found_while_other_files_of_the_folder_come_and_go(tmp_path: Path) -> None:
    line = KEY.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    server = ServerFolder(tmp_path)
    server.add_registered_site("north", "17", line)
    # A link to nothing is listed and cannot be read: like a file that another process removes after the listing.
    for name in ("south.pub", ".west.pub.0123.part", "nodes.json.part"):
        (server.sites / name).symlink_to(tmp_path / "removed")
    assert RegisteredKeys(server.sites).find_site_name(encode_public_key(read_public_key(line))) == "north"


def test_the_deploy_page_installs_from_a_clone_and_torch_first() -> None:
    page = Path(__file__).parents[2] / "docs" / "deploy.md"
    installs = [line.strip() for line in page.read_text().splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert " torch==" in installs[0]
    assert installs[1].endswith("'./fedlog[federate]'")  # a path: no index has the package
    assert all("-c fedlog/constraints.txt" in line for line in installs)


def test_the_guard_shadows_every_task_program(tmp_path: Path) -> None:
    folder = write_guard_programs(tmp_path / "programs")
    assert "-m fedlog.flower.site.guard" in (folder / GUARDED).read_text()
    for name in REFUSED:
        done = subprocess.run([folder / name, "--token", "x"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "refused" in done.stderr
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    assert set(REFUSED) == set(TASK_TYPE_TO_COMMAND.values())


def test_the_guard_starts_the_installed_app_and_no_other_kind_of_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResultStatus

    started = []

    class NoProcesses:
        def set_forkserver_preload(self, modules: list[str]) -> None:
            pass

        def Process(self, target: object, **_: object) -> Any:  # noqa: N802 (multiprocessing's name)
            return SimpleNamespace(start=lambda: started.append(target), is_alive=lambda: True)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("multiprocessing.get_context", lambda method: NoProcesses())
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", lambda: None)
    executor = ForkingExecutor()
    assert executor.get_eligible_capacity(set(TaskType)) == ({TaskType.CLIENT_APP}, set())
    for kind, installs in product(TaskType, (False, True)):
        found = executor.launch(ExecutionSpec(kind, "127.0.0.1:1", "token", False, None, installs, None, False, 1))
        runs = kind is TaskType.CLIENT_APP and not installs
        assert found.status is (LaunchResultStatus.ACCEPTED if runs else LaunchResultStatus.FAILED), kind
    assert started == [run_worker, serve_task]


def test_a_guard_whose_supernode_has_ended_leaves_the_last_words_of_the_log_to_it(tmp_path: Path) -> None:
    """The last lines say why the SuperNode ended; a traceback after them would hide them."""
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    arguments = ("--insecure", "--runtime-api-address", f"127.0.0.1:{find_free_port()}", "--parent-pid", str(gone.pid))
    running = start_program(Command((sys.executable, "-m", "fedlog.flower.site.guard", *arguments)), tmp_path / "log")
    try:
        assert running.process.wait(300) is not None
        assert "KeyboardInterrupt" not in running.read_log_end(1000)
    finally:
        running.stop()


def test_a_command_is_stopped_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlog.flower.ops.processes.STOP_SECONDS", 0.5)
    # The child ignores the polite signal and the parent's end, as a stuck helper would.
    script = 'trap "" TERM; (trap "" TERM; sleep 61.5) & echo started; wait'
    running = start_program(Command(("sh", "-c", script)), tmp_path / "log")
    while "started" not in running.read_log_end():
        threading.Event().wait(0.05)
    running.stop()
    listing = subprocess.run(["ps", "-axo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    assert not [line for line in listing.splitlines() if "sleep 61.5" in line and not line.startswith("Z")]


def test_a_copied_folder_does_not_end_the_processes_of_the_original(tmp_path: Path) -> None:
    original = start_program(Command(("sh", "-c", "sleep 61.35")), tmp_path / "site" / "log")
    shutil.copytree(tmp_path / "site", tmp_path / "copy")
    start_program(Command(("true",)), tmp_path / "copy" / "log").stop()
    assert original.exit_code is None
    # Nor does a file from before the machine was started again.
    pid_file = tmp_path / "site" / "log.pid"
    number, since, _, place = pid_file.read_text().split()
    pid_file.write_text(f"{number} {since} another-boot {place}\n")
    start_program(Command(("true",)), tmp_path / "site" / "log").stop()
    assert original.exit_code is None
    original.stop()


def test_what_a_killed_starter_left_behind_is_ended_by_the_next_start(tmp_path: Path) -> None:
    left = start_program(Command(("sh", "-c", "sleep 61.25 & wait")), tmp_path / "log")
    unrelated = start_program(Command(("sh", "-c", "sleep 61.75")), tmp_path / "other")
    again = start_program(Command(("true",)), tmp_path / "log")
    assert left.process.wait(30) == -signal.SIGKILL
    assert unrelated.exit_code is None
    for running in (again, unrelated):
        running.stop()
    assert not list(tmp_path.glob("*.pid"))


def test_a_process_number_that_was_given_out_again_is_left_alone(tmp_path: Path) -> None:
    bystander = start_program(Command(("sleep", "61.9")), tmp_path / "other")
    (tmp_path / "log.pid").write_text(f"{bystander.process.pid} 0.0\n")
    start_program(Command(("true",)), tmp_path / "log").stop()
    assert bystander.exit_code is None
    bystander.stop()


def test_failures_of_commands_are_call_flwr(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="exit code 3: oh"):
        run_command(Command(("sh", "-c", "echo oh >&2; exit 3")))
    running = start_program(Command(("sh", "-c", "echo broken; exit 4")), tmp_path / "log")
    with pytest.raises(RunError, match="exit code 4") as error:
        wait_for_port(running, find_free_port())
    assert "broken" in str(error.value)
