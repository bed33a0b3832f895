"""From settings to the values of the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvmeta.types import GroupKind, KvGroup
from router.domain.errors import BadRequest
from router.domain.topology import Role
from router.settings import (
    Settings,
    build_layout,
    build_topology,
    load_settings,
    parse_instance,
)
from tests.fakes.configurations import SOUND, write_configuration


@pytest.fixture
def sound(tmp_path: Path) -> Settings:
    return load_settings(write_configuration(tmp_path), {})


def test_the_fleet_keeps_its_order_and_units(sound: Settings) -> None:
    """Instances know their cluster and revision; a link's Gbit/s become bytes per second."""
    fleet = build_topology(sound)
    assert [(item.name, item.cluster, item.compatibility) for item in fleet.instances] == [
        ("p0", "east", "1"),
        ("d0", "east", "1"),
        ("f0", "west", "1"),
    ]
    (link,) = fleet.links
    assert (link.source, link.target, link.capacity) == ("west", "east", 12.5e9)


def test_a_revision_or_a_compatibility_of_its_own_sets_an_instance_apart(tmp_path: Path) -> None:
    """What an instance says of itself goes before what its model says."""
    text = SOUND.replace("role: decode}", 'role: decode, revision: "2"}').replace(
        '"http://10.0.1.1:8000", role: prefill',
        '"http://10.0.1.1:8000", role: prefill, compatibility: flash-3, api_key: k',
    )
    fleet = build_topology(load_settings(write_configuration(tmp_path, text), {}))
    _, decode, remote = fleet.instances
    assert (decode.compatibility, remote.compatibility) == ("2", "flash-3")
    assert remote.api_key == "k"
    assert "api_key" not in repr(remote)


def test_a_layout_says_what_blocks_must_share(sound: Settings, tmp_path: Path) -> None:
    """Everything that makes blocks differ changes the fingerprint; served names do not."""
    (model,) = sound.models
    layout = build_layout(model, sound)
    assert layout.block_size == 64
    assert layout.groups == (
        KvGroup(GroupKind.FULL_ATTENTION),
        KvGroup(GroupKind.SLIDING_WINDOW, window=1024),
    )
    assert layout.counted_media == {"GPU", "CPU"}
    others = [
        SOUND.replace("aliases: [small]", "kv_dtype: fp8"),
        SOUND.replace("aliases: [small]", "world_size: 8"),
        SOUND.replace("window: 1024", "window: 512"),
        SOUND.replace("aliases: [small]", "tokenizer: {kind: hf, path: pd.yaml, revision: x}"),
    ]
    prints = {layout.fingerprint, build_layout(model, sound, revision="2").fingerprint}
    for text in others:
        changed = load_settings(write_configuration(tmp_path, text), {})
        prints.add(build_layout(changed.models[0], changed).fingerprint)
    assert len(prints) == 6
    same = SOUND.replace("aliases: [small]", "served_name: other\n    media: [GPU]")
    changed = load_settings(write_configuration(tmp_path, same), {})
    renamed = build_layout(changed.models[0], changed)
    assert renamed.fingerprint == layout.fingerprint
    assert renamed.counted_media == {"GPU"}


def test_an_instance_can_be_added_as_a_configuration_entry_plus_cluster(sound: Settings) -> None:
    """What the admin API is sent becomes an instance like a configured one."""
    added = parse_instance(
        {"name": "d1", "cluster": "east", "url": "http://h:1/", "role": "decode"}, sound
    )
    assert (added.cluster, added.url, added.role) == ("east", "http://h:1", Role.DECODE)
    assert added.compatibility == "1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cluster": "eats"}, "cluster: no cluster is named 'eats'; did you mean `east`?"),
        ({"cluster": "west"}, "role: must be prefill in a prfaas cluster"),
        ({"model": "n"}, "model: no model is named 'n'; known: m"),
        (
            {"url": "h:1", "rôle": 1},
            "rôle: unknown key; did you mean `role`?; url: must start with",
        ),
        ({"api_key": "file:/etc/shadow"}, "api_key: `file:` is read in a configuration file only"),
        ({"cluster": None}, "cluster: must be text: put it in quotes (got nothing)"),
    ],
)
def test_a_faulty_entry_is_the_callers_fault(
    change: dict[str, int | str | None], message: str, sound: Settings
) -> None:
    """A faulty entry is a 400 that names the field; files of the gateway's host stay unread."""
    entry: dict[str, int | str | None] = {
        "name": "d1",
        "cluster": "east",
        "url": "http://h:1",
        "role": "decode",
    }
    with pytest.raises(BadRequest) as caught:
        parse_instance({**entry, **change}, sound)
    assert str(caught.value).startswith(message)
