"""What a machine is made of, as bytes and command lines."""

import stat
import struct
from pathlib import Path

import msgspec
import pytest

from cloister.sandbox.microvm import command_line
from cloister.sandbox.microvm.boot import initramfs
from cloister.sandbox.microvm.disks import CLUSTER_BITS, empty_disk
from cloister.sandbox.microvm.snapshots import with_pages

LAYERS = (command_line.LayerFiles(20), command_line.LayerFiles(21), command_line.LayerFiles(22, 23))


def plan(**changes: object) -> command_line.MachinePlan:
    made = command_line.MachinePlan(
        accelerator="tcg",
        memory_bytes=256 << 20,
        ram=10,
        ram_shared=False,
        link=11,
        monitor=12,
        disk=LAYERS,
        start=30,
    )
    return msgspec.structs.replace(made, **changes)


def after(argv: list[str], option: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == option]


def test_a_machine_has_a_line_a_disk_and_a_console_and_nothing_else() -> None:
    argv = command_line.emulator_argv(Path("/usr/bin/qemu"), plan())
    devices = [device.split(",")[0] for device in after(argv, "-device")]
    assert devices == ["virtio-serial-device", "virtserialport", "virtio-blk-device"]
    assert [
        word for word in argv if word.startswith(("-net", "-nic", "-vnc", "-usb", "-fsdev", "-virtfs"))
    ] == []
    for word in ("-nodefaults", "-no-user-config", "-no-reboot"):
        assert word in argv
    assert "spawn=deny" in after(argv, "-sandbox")[0]


def test_only_the_topmost_layer_can_be_written() -> None:
    nodes = [
        msgspec.json.decode(node)
        for node in after(command_line.emulator_argv(Path("qemu"), plan()), "-blockdev")
    ]
    assert [node["read-only"] for node in nodes] == [True, True, False]
    assert [node.get("backing") for node in nodes] == [None, "disk0", "disk1"]
    assert [node["driver"] for node in nodes] == ["raw", "qcow2", "qcow2"]


def test_a_resumed_machine_writes_to_private_memory() -> None:
    woken = command_line.emulator_argv(Path("qemu"), plan())
    assert "share=off" in after(woken, "-object")[0]
    assert after(woken, "-incoming") == ["fd:30"] and "-kernel" not in woken
    booted = command_line.emulator_argv(
        Path("qemu"), plan(ram_shared=True, start=command_line.Boot(31, 32, "quiet"))
    )
    assert "share=on" in after(booted, "-object")[0]
    assert after(booted, "-append") == ["quiet"] and "-incoming" not in booted


def test_hardware_is_not_told_how_fast_it_is() -> None:
    assert "tsc_early_khz=2596136" in command_line.cmdline("tcg", 2_596_136)
    assert "tsc" not in command_line.cmdline("kvm", 2_596_136)
    assert after(command_line.emulator_argv(Path("qemu"), plan(accelerator="kvm")), "-cpu") == ["host"]


@pytest.mark.parametrize(("asked", "given"), [(1, 128), (128, 128), (129, 192), (2048, 2048)])
def test_memory_is_given_in_steps(asked: int, given: int) -> None:
    assert command_line.memory_for(asked << 20) == given << 20


def test_an_archive_holds_the_guest_and_the_modules() -> None:
    archive, at, found = initramfs(b"guest", {"virtio": b"module!"}), 0, dict[str, tuple[int, bytes]]()
    while True:
        assert archive[at : at + 6] == b"070701" and at % 4 == 0
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        size, name_size = fields[6], fields[11]
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        data_at = at + (110 + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            break
        found[name] = (fields[1], archive[data_at : data_at + size])
        at = data_at + (size + 3) // 4 * 4
    assert found["init"] == (stat.S_IFREG | 0o755, b"guest")
    assert found["modules/virtio.ko"] == (stat.S_IFREG | 0o444, b"module!")
    assert stat.S_ISCHR(found["dev/console"][0])


@pytest.mark.parametrize("gigabytes", [1, 8, 1024])
def test_an_empty_disk_counts_every_cluster_it_has(gigabytes: int) -> None:
    disk, cluster = empty_disk(gigabytes << 30), 1 << CLUSTER_BITS
    magic, version = struct.unpack_from(">4sI", disk)
    (size,) = struct.unpack_from(">Q", disk, 24)
    assert (magic, version, size) == (b"QFI\xfb", 3, gigabytes << 30)
    assert len(disk) % cluster == 0
    (block,) = struct.unpack_from(">Q", disk, cluster)
    counts = struct.unpack_from(f">{cluster // 2}H", disk, block)
    assert sum(counts) == len(disk) // cluster


def test_pages_travel_between_the_header_of_a_state_and_the_rest() -> None:
    state = struct.pack(">II", 0x5145564D, 3) + b"devices"
    page = memoryview(bytes(4096))
    made = b"".join(with_pages(state, [(0x1000, page), (0x5000, page)]))
    assert made.startswith(state[:8]) and made.endswith(b"devices")
    assert len(made) == len(state) + 17 + 2 * (8 + 4096) + 4 + 8 + 5
    with pytest.raises(ValueError, match="not the state"):
        list(with_pages(b"something else", []))
