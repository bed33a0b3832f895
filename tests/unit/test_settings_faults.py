"""Every way to get a configuration wrong is told in one line that points at the place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from router.commands.app import run
from tests.fakes.configurations import PROFILE, SOUND, write_configuration

P0 = '{name: p0, url: "http://10.0.0.1:8000", role: prefill, kv_events: "tcp://10.0.0.1:5557"}'
D0 = '{name: d0, url: "http://10.0.0.2:8000", role: decode}'
LINK = "{name: west-east, from: west, to: east, capacity_gbps: 100}"
TENANT = "{name: acme, api_keys: [sk-acme], home: east}"
THRESHOLD = "threshold: {mode: manual, tokens: 19400}"

# (what is replaced, by what, the line expected on stderr without the file's name)
BROKEN = {
    "negative number": (
        "block_size: 64",
        "block_size: -64",
        "6:19: models[0].cache.block_size: must be greater than 0 (got -64)",
    ),
    "hits of half a block": (
        "block_size: 64",
        "block_size: 64\n      alignment: 100",
        "7:18: models[0].cache.alignment: must be a multiple of block_size (64; got 100)",
    ),
    "text for a number": (
        "capacity_gbps: 100",
        "capacity_gbps: lots",
        "23:60: links[0].capacity_gbps: must be a number (got 'lots')",
    ),
    "fraction for a whole number": (
        "tokens: 19400",
        "tokens: 1.5",
        "25:37: scheduler.threshold.tokens: must be a whole number (got 1.5)",
    ),
    "true for a number": (
        "tokens: 19400",
        "tokens: true",
        "25:37: scheduler.threshold.tokens: must be a number (got true)",
    ),
    "infinity": (
        "capacity_gbps: 100",
        "capacity_gbps: .inf",
        "23:60: links[0].capacity_gbps: must be a finite number (got inf)",
    ),
    "r54 negative threshold": (
        "tokens: 19400",
        "tokens: -1",
        "25:37: scheduler.threshold.tokens: must be at least 0 (got -1)",
    ),
    "misspelt section": (
        "scheduler:",
        "schedular:",
        "24:1: schedular: unknown key; did you mean `scheduler`?",
    ),
    "misspelt key": (
        "aliases: [small]",
        "alias: [small]",
        "4:5: models[0].alias: unknown key; did you mean `aliases`?",
    ),
    "misspelt key of a flow mapping": (
        "role: decode}",
        "role: decode, kv_event: x}",
        "17:63: clusters[0].instances[1].kv_event: unknown key; did you mean `kv_events`?",
    ),
    "misspelt choice": (
        "mode: manual",
        "mode: manul",
        "25:21: scheduler.threshold.mode: must be one of manual, auto, off;"
        " did you mean `manual`? (got 'manul')",
    ),
    "missing key": (
        ", role: decode}",
        "}",
        "17:9: clusters[0].instances[1].role: is required",
    ),
    "list for a mapping": (
        THRESHOLD,
        "threshold: [1]",
        "25:14: scheduler.threshold: must be a mapping (got a list)",
    ),
    "unquoted revision": (
        'revision: "1"',
        "revision: 1.10",
        "3:15: models[0].revision: must be text: put it in quotes (got 1.1)",
    ),
    "key given twice": (
        'revision: "1"',
        "name: n",
        "3:5: models[0].name: given twice (first in line 2)",
    ),
    "broken YAML": (
        "aliases: [small]",
        "aliases: [small",
        "5:10: not valid YAML: while parsing a flow sequence, expected ',' or ']', but got ':'",
    ),
    "unsupported tag": (
        "block_size: 64",
        "block_size: !!python/name:os.system",
        "6:19: models[0].cache.block_size:"
        " the tag 'tag:yaml.org,2002:python/name:os.system' is not supported",
    ),
    "variable that is not set": (
        "api_keys: [sk-acme]",
        "api_keys: ['${NOT_SET_HERE}']",
        "27:29: tenants[0].api_keys[0]: the environment variable NOT_SET_HERE is not set",
    ),
    "alias equals a model": (
        "aliases: [small]",
        "aliases: [m]",
        "4:15: models[0].aliases[0]: the name 'm' is already taken by models[0].name",
    ),
    "adapter equals an alias": (
        "aliases: [small]",
        "aliases: [small]\n    loras: [{name: small}]",
        "5:20: models[0].loras[0].name: the name 'small' is already taken by models[0].aliases[0]",
    ),
    "two clusters of one name": (
        "links:\n",
        "  - {name: east, kind: pd}\nlinks:\n",
        "22:12: clusters[2].name: the cluster name 'east' is already taken by clusters[0].name",
    ),
    "two instances of one name": (
        "name: d0",
        "name: p0",
        "17:16: clusters[0].instances[1].name:"
        " the instance name 'p0' is already taken by clusters[0].instances[0].name",
    ),
    "two links of one name": (
        LINK,
        f"{LINK}\n  - {{name: west-east, from: east, to: west, capacity_gbps: 1}}",
        "24:12: links[1].name: the link name 'west-east' is already taken by links[0].name",
    ),
    "two links of one direction": (
        LINK,
        f"{LINK}\n  - {{name: other, from: west, to: east, capacity_gbps: 1}}",
        "24:5: links[1]: 'west' to 'east' is already joined by 'west-east'",
    ),
    "link to nowhere": (
        "to: east",
        "to: eats",
        "23:39: links[0].to: no cluster is named 'eats'; did you mean `east`?",
    ),
    "link to itself": (
        "to: east",
        "to: west",
        "23:39: links[0].to: must be another cluster than `from` ('west')",
    ),
    "decode in a prfaas cluster": (
        '"http://10.0.1.1:8000", role: prefill',
        '"http://10.0.1.1:8000", role: both',
        "21:55: clusters[1].instances[0].role: must be prefill in a prfaas cluster (got 'both')",
    ),
    "model that does not exist": (
        "role: decode}",
        "role: decode, model: n}",
        "17:70: clusters[0].instances[1].model: no model is named 'n'; known: m",
    ),
    "sliding window without a window": (
        ", window: 1024",
        "",
        "9:11: models[0].cache.groups[1].window: is required for kind sliding_window",
    ),
    "window of another kind": (
        "{kind: full_attention}",
        "{kind: full_attention, window: 4}",
        "8:42: models[0].cache.groups[0].window:"
        " belongs to kind sliding_window, not to full_attention",
    ),
    "no groups": (
        "      groups:\n        - {kind: full_attention}\n"
        "        - {kind: sliding_window, window: 1024}\n",
        "      groups: []\n",
        "7:15: models[0].cache.groups: must have at least 1 element(s)",
    ),
    "hysteresis without a gap": (
        THRESHOLD,
        "bandwidth: {scarce_above: 0.5, abundant_below: 0.6}",
        "25:29: scheduler.bandwidth.scarce_above: must be greater than abundant_below (0.5 <= 0.6)",
    ),
    "bounds the wrong way round": (
        "tokens: 19400}",
        "min_tokens: 9, max_tokens: 8}",
        "25:41: scheduler.threshold.min_tokens: must not exceed max_tokens (9 > 8)",
    ),
    "scheme that is not HTTP": (
        '"http://10.0.0.2:8000"',
        '"ftp://10.0.0.2"',
        "17:25: clusters[0].instances[1].url:"
        " must start with http:// or https:// (got 'ftp://10.0.0.2')",
    ),
    "port out of range in a URL": (
        '"http://10.0.0.2:8000"',
        '"http://10.0.0.2:80000"',
        "17:25: clusters[0].instances[1].url: is no valid address:"
        " Port out of range 0-65535 (got 'http://10.0.0.2:80000')",
    ),
    "port out of range": (
        "scheduler:\n",
        "server: {port: 65536}\nscheduler:\n",
        "24:16: server.port: must be at most 65535 (got 65536)",
    ),
    "event endpoint that cannot be connected to": (
        '"tcp://10.0.0.1:5557"',
        '"tcp://*:5557"',
        "16:75: clusters[0].instances[0].kv_events: must name the engine's host:"
        " `*` is where it listens (got 'tcp://*:5557')",
    ),
    "replay without events": (
        "role: decode}",
        'role: decode, kv_replay: "tcp://10.0.0.2:1"}',
        "17:74: clusters[0].instances[1].kv_replay:"
        " needs kv_events: there is nothing else to replay",
    ),
    "ranks beyond the last port": (
        'kv_events: "tcp://10.0.0.1:5557"',
        'kv_events: "tcp://10.0.0.1:65535", data_parallel_ranks: 2',
        "16:75: clusters[0].instances[0].kv_events:"
        " port + rank exceeds 65535 (the last rank would use 65536)",
    ),
    "store of an unknown form": (
        "scheduler:\n",
        "store: {url: 'mysql://u:secret@h'}\nscheduler:\n",
        "24:14: store.url: must be one of: memory://, redis://host:port/db,"
        " rediss://host:port/db, unix:///path, redis+sentinel://host1,host2/service,"
        " redis+cluster://host1,host2",
    ),
    "digest of the wrong length": (
        "[sk-acme]",
        "['sha256:abc']",
        "27:29: tenants[0].api_keys[0]: `sha256:` is followed by 64 hexadecimal digits",
    ),
    "empty key": (
        "[sk-acme]",
        "['']",
        "27:29: tenants[0].api_keys[0]: must not be empty",
    ),
    "secret file that is not there": (
        "[sk-acme]",
        "['file:./nowhere']",
        "27:29: tenants[0].api_keys[0]: file:./nowhere cannot be read: No such file or directory",
    ),
    "two tenants with one key": (
        TENANT,
        f"{TENANT}\n  - {{name: other, api_keys: [sk-acme]}}",
        "28:30: tenants[1].api_keys[0]: the same key as tenants[0].api_keys[0]",
    ),
    "home that is no pd cluster": (
        "home: east",
        "home: west",
        "27:45: tenants[0].home: no pd cluster is named 'west'; did you mean `east`?",
    ),
    "lease shorter than its margin": (
        "scheduler:\n",
        "transfer: {lease_seconds: 5}\nscheduler:\n",
        "24:11: transfer.lease_margin_seconds: must be less than lease_seconds (5)",
    ),
    "connector that nobody has": (
        "scheduler:\n",
        "transfer: {connector: nixel}\nscheduler:\n",
        "24:23: transfer.connector: no connector is named 'nixel'; did you mean `nixl`?",
    ),
    "tenant without keys": (
        "[sk-acme]",
        "[]",
        "27:28: tenants[0].api_keys: must have at least 1 element(s)",
    ),
    "one port for two listeners": (
        "scheduler:\n",
        "admin: {port: 8000}\nscheduler:\n",
        "24:15: admin.port: must be another port than server.port (8000)",
    ),
    "one engine twice": (
        "http://10.0.0.2:8000",
        "HTTP://10.0.0.1:8000/",
        "17:25: clusters[0].instances[1].url: is the engine of clusters[0].instances[0].url too:"
        " give it one entry",
    ),
    "one publisher twice": (
        "role: decode}",
        'role: decode, kv_events: "tcp://10.0.0.1:5557"}',
        "17:74: clusters[0].instances[1].kv_events: is the endpoint of"
        " clusters[0].instances[0].kv_events too",
    ),
    "a publisher among another one's ranks": (
        'kv_events: "tcp://10.0.0.1:5557"}',
        'kv_events: "tcp://10.0.0.1:5557", kv_replay: "tcp://10.0.0.1:5560",'
        " data_parallel_ranks: 4}",
        "16:109: clusters[0].instances[0].kv_replay: is the endpoint of"
        " clusters[0].instances[0].kv_events too",
    ),
    "an engine that is the gateway": (
        "scheduler:\n",
        "server: {host: 10.0.0.2}\nscheduler:\n",
        "17:25: clusters[0].instances[1].url: is the gateway's own listener (server.port)",
    ),
    "cookies for any page": (
        "scheduler:\n",
        "server: {cors: {allow_origins: ['*'], allow_credentials: true}}\nscheduler:\n",
        "24:58: server.cors.allow_credentials: must be false where any origin (`*`) may call:"
        " name the origins",
    ),
    "less room for all bodies than for one": (
        "scheduler:",
        "server: {max_buffered_bytes: 1000}\nscheduler:",
        "24:30: server.max_buffered_bytes: must be at least server.max_body_bytes (16777216)",
    ),
    "tokenizer of no kind": (
        "aliases: [small]",
        "tokenizer: {kind: fast}",
        "4:23: models[0].tokenizer.kind: must be one of engine, hf, none (got 'fast')",
    ),
    "tokenizer without a path": (
        "aliases: [small]",
        "tokenizer: {kind: hf}",
        "4:16: models[0].tokenizer.path: is required",
    ),
    "tokenizer that is not there": (
        "aliases: [small]",
        "tokenizer: {kind: hf, path: ./nowhere}",
        "4:33: models[0].tokenizer.path: nowhere does not exist there",
    ),
    "unknown key of a tokenizer": (
        "aliases: [small]",
        "tokenizer: {kind: none, byte_per_token: 4}",
        "4:29: models[0].tokenizer.byte_per_token: unknown key; did you mean `bytes_per_token`?",
    ),
    "profile of an unknown pool": (
        "pd: ./pd.yaml",
        "eats: ./pd.yaml",
        "11:13: models[0].profiles.eats: no pool or cluster is named 'eats'; did you mean `east`?",
    ),
    "profile that is not there": (
        "./pd.yaml",
        "./nowhere.yaml",
        "11:11: models[0].profiles.pd: {directory}nowhere.yaml cannot be read:"
        " No such file or directory",
    ),
    "profile of another revision": (
        'revision: "1"',
        'revision: "2"',
        "11:11: models[0].profiles.pd: {directory}pd.yaml is a profile of revision '1', not of '2'",
    ),
    "profile of another model": (
        "- name: m\n",
        "- name: k\n",
        "11:11: models[0].profiles.pd: {directory}pd.yaml is a profile of model 'm', not of 'k'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_fault_is_one_line_with_its_place(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`config check` tells the fault in one line with file, line, column and path, and exits 2."""
    old, new, expected = BROKEN[case]
    assert SOUND.count(old) == 1
    path = write_configuration(tmp_path, SOUND.replace(old, new))
    code = run(["config", "check", str(path)])
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert told.err == f"{path}:{expected.replace('{directory}', f'{tmp_path}/')}\n"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("tokens: 2000", "tokens: 1000", "9:14: points[1].tokens: must increase (1000 after 1000)"),
        (
            "kv_bytes: 200",
            "kv_bytes: 1",
            "9:30: points[1].kv_bytes: must not decrease (1 after 100)",
        ),
        (
            "prefill_seconds: 0.9",
            "prefill_seconds: 0.1",
            "9:52: points[1].prefill_seconds: must not decrease (0.1 after 0.5)",
        ),
        ("engine: vLLM\n", "", "1:1: engine: is required"),
        (
            "source: measured",
            "source: guessed",
            "6:9: source: must be one of measured, modelled, quoted (got 'guessed')",
        ),
        (
            'date: "2026-04-16"',
            "date: yesterday",
            "5:7: date: must be a date such as 2026-04-16 (got 'yesterday')",
        ),
        ("kv_bytes: 100,", "kv_byte: 100,", "8:20: points[0].kv_byte: unknown key;"),
    ],
)
def test_a_profile_fault_points_into_the_profile(
    old: str, new: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault inside a profile file is told with that file's own line and column."""
    path = write_configuration(tmp_path, profile=PROFILE.replace(old, new))
    assert run(["config", "check", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith(f"{tmp_path}/pd.yaml:{expected}") for line in lines)


def test_no_pd_cluster_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a PD cluster nobody could decode, so the configuration is refused."""
    text = "models: [{name: m}]\nclusters:\n  - {name: west, kind: prfaas}\n"
    path = write_configuration(tmp_path, text)
    assert run(["config", "check", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"{path}:3:3: clusters: no cluster of kind pd: nobody could decode\n"
    )


def test_models_of_several_revisions_need_a_named_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An instance that could run either of two revisions must say which."""
    text = (
        'models: [{name: a, revision: "1"}, {name: b, revision: "2"}]\n'
        "clusters:\n"
        '  - {name: east, kind: pd, instances: [{name: d0, url: "http://h", role: both}]}\n'
    )
    path = write_configuration(tmp_path, text)
    assert run(["config", "check", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"{path}:3:40: clusters[0].instances[0]:"
        " models differ in revision: give the instance its `model`\n"
    )


def test_all_faults_are_told_in_the_order_of_their_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Faults of shape and of meaning come together, each once, sorted by place."""
    text = (
        SOUND.replace("block_size: 64", "block_size: 0")
        .replace("to: east", "to: nowhere")
        .replace("name: d0", "name: p0")
        .replace("mode: manual", "mode: manul")
    )
    path = write_configuration(tmp_path, text)
    assert run(["config", "check", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    places = [tuple(map(int, re.findall(r"c\.yaml:(\d+):(\d+): ", line)[0])) for line in lines]
    assert len(lines) == 4
    assert places == sorted(places)


def test_faults_are_told_to_programs_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` gives file, line, column, setting and message, and still exits 2."""
    path = write_configuration(tmp_path, SOUND.replace("block_size: 64", "block_size: 0"))
    assert run(["config", "check", str(path), "--json"]) == 2
    assert '"line": 6' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "1:1: clusters: is required"),
        (b"\xff\xfe\x00", "is not UTF-8 (byte 0)"),
        (b"a: \x01", "1:4: a character that YAML does not allow"),
        (b"[" * 5000, "is nested too deeply"),
        (b"- 1", "1:1: must be a mapping (got a list)"),
        (b"a: &a [*a]", "1:4: a[0]: an alias that contains itself"),
        (b"---\n---\n", "not valid YAML: expected a single document in the stream"),
        (b"? [a]\n: 1\n", "1:3: a key must be text"),
    ],
)
def test_files_that_are_no_configuration(
    content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever bytes a file holds, the answer is a readable line and exit code 2."""
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    assert run(["config", "check", str(path)]) == 2
    assert expected in capsys.readouterr().err


def test_aliases_cannot_fill_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small file whose aliases unfold to billions of values is refused."""
    levels = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(levels), "utf-8")
    assert run(["config", "check", str(path)]) == 2
    assert "unfolds to more than" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file is named, without a line."""
    path = tmp_path / "nowhere.yaml"
    assert run(["config", "check", str(path)]) == 2
    assert capsys.readouterr().err == f"{path}: cannot be read: No such file or directory\n"
