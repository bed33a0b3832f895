"""A sound configuration: values, references, overrides, secrets, origins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from router.commands.app import run
from router.domain.decision import ThresholdMode
from router.domain.topology import ClusterKind
from router.settings import Settings, SettingsError, digest_key, load, load_settings
from router.settings.checks import note_oddities
from router.settings.documents import parse_document, resolve_scalar
from router.settings.errors import FilePlace, VariablePlace
from router.settings.origins import BuiltIn, format_origin, list_effective
from tests.fakes.configurations import SOUND, write_configuration

EXAMPLE = Path(__file__).parents[2] / "examples/two-clusters.yaml"


def settings_or_faults(path: Path) -> Settings | SettingsError:
    try:
        return load_settings(path, {})
    except SettingsError as error:
        return error


def test_the_example_loads() -> None:
    """The shipped example is a whole configuration, its profiles included."""
    loaded = load(EXAMPLE, {})
    assert [cluster.name for cluster in loaded.settings.clusters] == ["pd-east", "prfaas-west"]
    assert loaded.settings.scheduler.threshold.tokens == 19400
    local = loaded.profile_of("kimi-linear-1t", "pd-east")
    remote = loaded.profile_of_kind("kimi-linear-1t", ClusterKind.PRFAAS)
    assert local is not None
    assert remote is not None
    assert (local.hardware, remote.hardware) == ("8xH20", "8xH200")
    assert local.points[1].tokens == 8000
    assert loaded.profile_of("kimi-linear-1t", "elsewhere") is None
    assert {path.name for path in loaded.files} == {"two-clusters.yaml", "h200.yaml", "h20.yaml"}


def test_settings_are_frozen_and_equal_for_equal_input() -> None:
    """Loading is a function of file and environment, and its value cannot be changed."""
    first, second = load_settings(EXAMPLE, {}), load_settings(EXAMPLE, {})
    assert first == second
    with pytest.raises(ValueError, match="frozen"):
        first.server.port = 1  # type: ignore[misc]


def test_the_check_command_says_ok(capsys: pytest.CaptureFixture[str]) -> None:
    """A sound configuration is answered with a summary and exit code 0."""
    assert run(["config", "check", str(EXAMPLE)]) == 0
    assert capsys.readouterr().out.startswith("ok: 1 model, 1 pd and 1 prfaas cluster(s)")


def test_the_check_command_notes_what_is_probably_not_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is allowed but useless or open is noted, and does not fail the check."""
    text = (
        SOUND.replace("from: west, to: east", "from: east, to: west")
        .replace("mode: manual", "mode: auto")
        .replace("    profiles:\n      pd: ./pd.yaml\n", "")
        .replace("tenants:\n  - {name: acme, api_keys: [sk-acme], home: east}\n", "")
        + "server: {host: 0.0.0.0}\n"
    )
    assert run(["config", "check", str(write_configuration(tmp_path, text))]) == 0
    notes = capsys.readouterr().out.splitlines()[1:]
    assert notes == [
        "note: no link leaves west: it will never be used",
        "note: no tenants: whoever reaches 0.0.0.0:8000 is served",
    ]


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        (
            "role: decode",
            "role: prefill",
            "no instance of east decodes: until one joins nothing is served there",
        ),
        (
            "    profiles:\n      pd: ./pd.yaml\nclusters:",
            "    profiles:\n      pd: ./pd.yaml\n  - {name: other, revision: '1'}\nclusters:",
            None,
        ),
        (
            'url: "http://10.0.1.1:8000", role: prefill',
            'url: "http://10.0.1.1:8000", role: prefill, compatibility: v2',
            "f0 fits no decode instance at the end of a link (revision or compatibility):"
            " it will never be used",
        ),
    ],
)
def test_parts_that_idle_are_noted(tmp_path: Path, old: str, new: str, note: str | None) -> None:
    """What loads but has nobody to work with is told; what has somebody is not."""
    assert SOUND.count(old) == 1
    settings = load_settings(write_configuration(tmp_path, SOUND.replace(old, new)), {})
    assert list(note_oddities(settings)) == ([] if note is None else [note])


def test_a_model_that_nobody_serves_is_noted(tmp_path: Path) -> None:
    """A model is told that no instance is for."""
    text = SOUND.replace("clusters:", "  - {name: other, revision: '1'}\nclusters:", 1)
    text = text.replace("role: prefill", "role: prefill, model: m")
    text = text.replace("role: decode", "role: decode, model: m")
    settings = load_settings(write_configuration(tmp_path, text), {})
    assert list(note_oddities(settings)) == ["no instance serves other"]


def test_one_address_may_serve_two_models(tmp_path: Path) -> None:
    """An endpoint that hides several models is an entry for each of them."""
    text = SOUND.replace("clusters:", "  - {name: other, revision: '1'}\nclusters:", 1)
    entry = '      - {name: d0, url: "http://10.0.0.2:8000", role: decode'
    both = f"{entry}, model: m}}\n{entry.replace('d0', 'd1')}, model: other"
    settings = load_settings(write_configuration(tmp_path, text.replace(entry, both)), {})
    assert [each.name for each in settings.clusters[0].instances] == ["p0", "d0", "d1"]


def test_what_is_read_but_not_acted_on_is_noted() -> None:
    """Nobody believes in an actuator that does nothing."""
    asked = {"PRFAAS_SCHEDULER__LONG_LOOP__ACTUATOR": "sglang"}
    assert list(note_oddities(load_settings(EXAMPLE, {}))) == []
    assert list(note_oddities(load_settings(EXAMPLE, asked))) == [
        "long_loop.actuator 'sglang': no instance is `convertible`, so nothing converts",
    ]


def test_a_rule_that_needs_profiles_asks_for_them(tmp_path: Path) -> None:
    """Under `slack` a model without one for a pool goes by `paper`, and that is noted."""
    slack = {"PRFAAS_SCHEDULER__POLICY": "slack"}
    assert list(note_oddities(load_settings(EXAMPLE, slack))) == []
    path = write_configuration(tmp_path)
    assert (
        "scheduler.policy 'slack': m has no profile for prfaas: its prompts go by `paper`"
        in list(note_oddities(load_settings(path, slack)))
    )


def test_the_real_command_exits_2_without_a_traceback(tmp_path: Path) -> None:
    """The installed entry point ends a faulty configuration with code 2 and one line."""
    path = write_configuration(tmp_path, SOUND.replace("block_size: 64", "block_size: 0"))
    done = subprocess.run(
        [sys.executable, "-m", "router", "config", "check", str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=EXAMPLE.parents[1],
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_an_override_wins_over_the_file(tmp_path: Path) -> None:
    """`PRFAAS_SECTION__KEY` replaces the file's value, also in list elements and whole sections."""
    path = write_configuration(tmp_path)
    changed = load_settings(
        path,
        {
            "PRFAAS_SCHEDULER__THRESHOLD__TOKENS": "7",
            "PRFAAS_SCHEDULER__THRESHOLD__MODE": "off",
            "PRFAAS_LINKS__0__CAPACITY_GBPS": "12.5",
            "PRFAAS_SERVER__CORS": "{allow_origins: ['https://a'], allow_credentials: true}",
            "PRFAAS_SERVER__PASSTHROUGH_PATHS": "[/tokenize]",
            "PRFAAS_TENANTS__0__HOME": "null",
            "PRFAAS_TENANTS__0__NAME": "12",
        },
    )
    assert changed.scheduler.threshold.tokens == 7
    assert changed.scheduler.threshold.mode is ThresholdMode.OFF
    assert changed.links[0].capacity_gbps == 12.5
    assert changed.server.cors.allow_origins == ("https://a",)
    assert changed.server.passthrough_paths == ("/tokenize",)
    assert changed.tenants[0].home is None
    assert changed.tenants[0].name == "12"


def test_other_variables_are_no_overrides(tmp_path: Path) -> None:
    """Names without `__`, such as Kubernetes' service variables, change nothing."""
    path = write_configuration(tmp_path)
    environ = {"PRFAAS_PORT": "tcp://1.2.3.4:80", "PRFAAS_SERVICE_HOST": "x", "HOME__X": "y"}
    assert load_settings(path, environ) == load_settings(path, {})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (
            "PRFAAS_SCHEDULER__THRESHOLD__TOKENS",
            "19k",
            "PRFAAS_SCHEDULER__THRESHOLD__TOKENS:"
            " scheduler.threshold.tokens: must be a whole number (got '19k')",
        ),
        (
            "PRFAAS_SCHEDULER__TRESHOLD__TOKENS",
            "1",
            "PRFAAS_SCHEDULER__TRESHOLD__TOKENS:"
            " scheduler.treshold: unknown key; did you mean `threshold`?",
        ),
        (
            "PRFAAS_CLUSTERS__2__NAME",
            "x",
            "PRFAAS_CLUSTERS__2__NAME: clusters has 2 element(s): 2 is no index (they start at 0)",
        ),
        (
            "PRFAAS_CLUSTERS__EAST__NAME",
            "x",
            "PRFAAS_CLUSTERS__EAST__NAME: clusters is a list: write the number of an element",
        ),
        (
            "PRFAAS_SERVER____PORT",
            "1",
            "PRFAAS_SERVER____PORT:"
            " names no setting: write PRFAAS_SECTION__KEY with one `__` between names",
        ),
        (
            "PRFAAS_MODELS__0__NAME__X",
            "1",
            "PRFAAS_MODELS__0__NAME__X: names no setting: nothing stands under 'name'",
        ),
        (
            "PRFAAS_SERVER__CORS",
            "{allow_origins: [}",
            "PRFAAS_SERVER__CORS: not valid YAML: while parsing a flow node,"
            " expected the node content, but found '}'",
        ),
        (
            "PRFAAS_LINKS__0__TO",
            "nowhere",
            "PRFAAS_LINKS__0__TO: links[0].to: no cluster is named 'nowhere'; known: east, west",
        ),
    ],
)
def test_a_wrong_override_names_its_variable(
    name: str, value: str, expected: str, tmp_path: Path
) -> None:
    """A fault that a variable caused is told with the variable's name, not with a line."""
    path = write_configuration(tmp_path)
    with pytest.raises(SettingsError) as caught:
        load(path, {name: value})
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_references_read_the_environment(tmp_path: Path) -> None:
    """`${NAME}` and `${NAME:-default}` work inside any text; empty counts as unset for `:-`."""
    text = SOUND.replace("host", "host") + (
        "server: {port: '${PORT:-9000}', host: 'h-${A}-${B:-b}'}\n"
        "store: {url: 'redis://:${PASSWORD}@h:6379/0'}\n"
        "admin: {api_key: '${NONE:-}'}\n"
        "engines: {seed: 3}\n"
    )
    path = write_configuration(tmp_path, text)
    read = load_settings(path, {"A": "a", "B": "", "PASSWORD": "p}w"})
    assert (read.server.port, read.server.host) == (9000, "h-a-b")
    assert read.store.url.get_secret_value() == "redis://:p}w@h:6379/0"
    assert read.admin.api_key is None


def test_an_escaped_reference_stays(tmp_path: Path) -> None:
    """`$${` writes `${`, and what a variable holds is not read again."""
    text = SOUND.replace("[sk-acme]", "['sk-$${X}', '${Y}']")
    read = load_settings(write_configuration(tmp_path, text), {"Y": "${Z}"})
    assert [key.get_secret_value() for key in read.tenants[0].api_keys] == ["sk-${X}", "${Z}"]


def test_an_override_makes_an_unset_reference_harmless(tmp_path: Path) -> None:
    """A reference that an override replaced need not be set."""
    path = write_configuration(tmp_path, SOUND.replace("[sk-acme]", "['${UNSET}']"))
    read = load_settings(path, {"PRFAAS_TENANTS__0__API_KEYS__0": "k"})
    assert read.tenants[0].api_keys[0].get_secret_value() == "k"


def test_an_empty_section_means_its_defaults(tmp_path: Path) -> None:
    """A section whose keys are all commented out is as good as left out."""
    path = write_configuration(tmp_path, SOUND + "server:\n  # port: 1\nadmission: ~\n")
    assert load_settings(path, {}).server == Settings.model_fields["server"].default


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    """A mapping can be written once and varied: its own keys win over the merged ones."""
    text = SOUND.replace(
        '{name: f0, url: "http://10.0.1.1:8000", role: prefill}',
        '&f0 {name: f0, url: "http://10.0.1.1:8000", role: prefill}\n'
        '      - {name: f1, <<: *f0, url: "http://10.0.1.2:8000"}',
    )
    _, west = load_settings(write_configuration(tmp_path, text), {}).clusters
    assert [(item.name, item.url) for item in west.instances] == [
        ("f0", "http://10.0.1.1:8000"),
        ("f1", "http://10.0.1.2:8000"),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("12:30", "12:30"),
        ("2026-04-16", "2026-04-16"),
        ("1e3", 1000.0),
        ("0x10", 16),
        ("0o17", 15),
        ("~", None),
        ("1_000", "1_000"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    """No word, time or date becomes a boolean, a number or a date behind the operator's back."""
    assert resolve_scalar(text) == value


def test_secrets_from_files_lose_their_line_end(tmp_path: Path) -> None:
    """`file:` is relative to the configuration, and the line end of the file is not the secret."""
    (tmp_path / "key").write_text("sk-file\r\n", "utf-8")
    (tmp_path / "salt").write_text("salt\n", "utf-8")
    text = SOUND.replace("[sk-acme]", "['file:key'], cache_salt: 'file:./salt'")
    loaded = load(write_configuration(tmp_path, text), {})
    (tenant,) = loaded.settings.tenants
    assert tenant.api_keys[0].get_secret_value() == "sk-file"
    assert tenant.cache_salt is not None
    assert tenant.cache_salt.get_secret_value() == "salt"
    assert {tmp_path / "key", tmp_path / "salt"} <= set(loaded.files)


def test_a_key_and_its_digest_are_the_same_key(tmp_path: Path) -> None:
    """A plain key in one place and its `sha256:` in another are found to be one."""
    digest = digest_key(load_settings(write_configuration(tmp_path), {}).tenants[0].api_keys[0])
    text = SOUND + f"admin: {{keys: [{{name: root, key: 'sha256:{digest.hex()}'}}]}}\n"
    with pytest.raises(SettingsError, match="the same key as"):
        load(write_configuration(tmp_path, text), {})


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "text",
    [
        SOUND.replace("sk-acme", SECRET),
        SOUND + f"admin: {{api_key: {SECRET}}}\n",
        SOUND + f"store: {{url: 'redis://u:{SECRET}@h:6379'}}\n",
        SOUND + f"store: {{url: 'redis://:{SECRET}/x@h:6379?password={SECRET}'}}\n",
        SOUND + f"store: {{url: 'rediss:{SECRET}'}}\n",
        SOUND + f"admin: {{apikey: {SECRET}}}\n",
        SOUND + f"admin: {{api_key: [{SECRET}]}}\n",
        SOUND + f"admin: {{keys: [{{name: n, key: '{SECRET} {SECRET}'}}]}}\n",
        SOUND.replace("[sk-acme]", SECRET),
        SOUND.replace("role: decode}", f"role: decode, api_key: {{a: {SECRET}}}}}"),
        SOUND.replace("http://10.0.0.2:8000", f"http://u:{SECRET}@10.0.0.2:8000"),
        SOUND.replace("http://10.0.0.2:8000", f"//u:{SECRET}@10.0.0.2:8000"),
    ],
)
@pytest.mark.parametrize("command", ["check", "show"])
def test_secrets_are_never_shown(
    text: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither values in force nor faults repeat a secret, wherever it was put."""
    path = write_configuration(tmp_path, text)
    run(["config", command, str(path)])
    run(["config", command, str(path), "--json"])
    told = capsys.readouterr()
    assert SECRET not in told.out + told.err
    outcome = settings_or_faults(path)
    assert SECRET not in repr(outcome) + str(outcome)


def test_every_value_in_force_tells_its_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`config show` tells default, file and line, or the variable of each value."""
    path = write_configuration(tmp_path)
    loaded = load(path, {"PRFAAS_SERVER__PORT": "9"})
    origins = {item.path: item for item in list_effective(loaded.settings, loaded.origins)}
    assert origins["server", "port"].origin == VariablePlace("PRFAAS_SERVER__PORT")
    assert origins["server", "host"].origin == BuiltIn()
    assert origins["links", 0, "from"].origin == FilePlace(str(path), 23, 29)
    assert format_origin(origins["links", 0, "from"].origin) == f"{path}:23"
    monkeypatch.setenv("PRFAAS_SERVER__PORT", "9")
    assert run(["config", "show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (port,) = [line for line in lines if line.startswith("server.port: ")]
    assert port.split() == ["server.port:", "9", "#", "environment", "PRFAAS_SERVER__PORT"]
    assert run(["config", "show", str(path), "--json"]) == 0
    shown = {item["setting"]: item for item in json.loads(capsys.readouterr().out)}
    assert shown["links[0].from"] == {
        "setting": "links[0].from",
        "value": "west",
        "origin": f"{path}:23",
    }


def test_data_parallel_ranks_and_ipc_endpoints(tmp_path: Path) -> None:
    """One rank may publish on ipc; several need ports to count up from."""
    plain = SOUND.replace("tcp://10.0.0.1:5557", "ipc:///run/events")
    assert load_settings(write_configuration(tmp_path, plain), {})
    ranks = plain.replace(
        "role: prefill, kv_events", "role: prefill, data_parallel_ranks: 2, kv_events"
    )
    with pytest.raises(SettingsError, match="must be tcp:// with several ranks"):
        load(write_configuration(tmp_path, ranks), {})


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "redis://h",
        "redis://h:6379/0",
        "rediss://u:p@h:6380/1?x=y",
        "redis://[::1]:6379",
        "unix:///run/redis.sock",
        "redis+sentinel://h1:26379,h2/mymaster",
        "redis+cluster://h1:7000,h2:7001",
    ],
)
def test_every_form_of_the_store_is_accepted(url: str, tmp_path: Path) -> None:
    """All the forms of the contract load; only memory is embedded."""
    path = write_configuration(tmp_path, SOUND + f"store: {{url: '{url}'}}\n")
    assert load_settings(path, {}).store.embedded == url.startswith("memory")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory://x",
        "redis://",
        "redis://a,b",
        "redis://h:99999",
        "redis://h:x",
        "unix://",
        "redis+sentinel://h1",
        "redis+sentinel:///m",
        "redis+cluster://",
        "redis+cluster://a,,b",
        "http://h",
    ],
)
def test_other_forms_of_the_store_are_refused(url: str, tmp_path: Path) -> None:
    """What no store could be reached by is a fault at load."""
    path = write_configuration(tmp_path, SOUND + f"store: {{url: '{url}'}}\n")
    with pytest.raises(SettingsError, match=r"store\.url: must be one of"):
        load(path, {})


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*Settings.model_fields, "name", "kind", "instances", "url", "role", "from", "to"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=_junk)
@example(value={"models": [{}], "clusters": [{"kind": "pd", "instances": None}]})
def test_junk_never_gives_anything_but_settings_or_faults(value: object, tmp_path: Path) -> None:
    """Whatever a file holds, loading returns settings or raises SettingsError."""
    path = write_configuration(tmp_path, json.dumps(value))
    match settings_or_faults(path):
        case SettingsError(faults=faults):
            assert faults
            assert all(str(fault) for fault in faults)
        case outcome:
            assert isinstance(outcome, Settings)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
@example(text="{? [}")
@example(text="<<: 1")
@example(text="!!binary x")
def test_any_text_is_a_document_or_a_fault(text: str) -> None:
    """Parsing arbitrary text returns a document or raises SettingsError."""
    try:
        parse_document(text, "t.yaml")
    except SettingsError as error:
        faults = error.faults
    else:
        return
    assert faults
