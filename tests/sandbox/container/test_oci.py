from pathlib import Path
from typing import Any

import msgspec

from cloister.core.ids import OwnerId, SandboxId
from cloister.core.requests import Quota
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container import oci
from cloister.sandbox.container.oci import Way
from cloister.sandbox.container.sandbox import ContainerRequest, environment
from cloister.sandbox.local.names import IDS, SLOTS, Name
from cloister.sandbox.snapshots import Origin
from cloister.sandbox.store.api import Layers, Root

NAME = Name(SandboxId("s-0123456789ab"), OwnerId("o-0123456789ab"), 0x8000)
MACHINE = oci.HostFacts("/srv", 1024, Path("/sys/fs/cgroup/unified"))
HOME = Path("/data/sandboxes") / str(NAME)
LAYERS = Layers(Path("/t/rootfs"), HOME / "files/upper", HOME / "files/work")


def config(quota: Quota | None = None, way: Way | None = None) -> Any:
    return msgspec.json.decode(oci.oci_config(MACHINE, NAME, quota or Quota(), way or Way()))


def test_root_inside_is_never_an_id_of_the_host() -> None:
    for mapping in (config()["linux"]["uidMappings"], config()["linux"]["gidMappings"]):
        assert mapping == [{"containerID": 0, "hostID": 0x8000 * 65_536, "size": 65_536}]
    assert min(SLOTS) * IDS > 1_879_048_191, "other tools' container ids end there"
    assert (max(SLOTS) + 1) * IDS < 2**32 - 2


def test_a_container_gets_every_namespace_and_can_gain_nothing() -> None:
    whole = config()
    assert {n["type"] for n in whole["linux"]["namespaces"]} == {
        *("user", "pid", "mount", "network", "ipc", "uts", "cgroup")
    }
    assert all("path" not in n for n in whole["linux"]["namespaces"]), "none is shared with anyone"
    capabilities = whole["process"]["capabilities"]
    assert whole["process"]["noNewPrivileges"] is True
    assert set(capabilities["bounding"]) == set(oci.CAPABILITIES)
    assert capabilities["inheritable"] == capabilities["ambient"] == []
    assert not {"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_MKNOD"} & set(oci.CAPABILITIES)


def test_nothing_of_the_host_is_mounted_but_the_guest_and_that_read_only() -> None:
    binds = [m for m in config()["mounts"] if "bind" in m["options"] or m["type"] == "bind"]
    assert [(m["destination"], m["source"]) for m in binds] == [("/.cloister/guest", "/srv/guest")]
    assert {"ro", "nosuid", "nodev"} <= set(binds[0]["options"])
    assert all("nosuid" in m["options"] for m in config()["mounts"])
    assert "/sys" not in {m["destination"] for m in config()["mounts"]}


def test_open_files_are_what_was_asked_but_never_more_than_the_host_can_give() -> None:
    def limit(asked: int) -> int:
        return config(Quota(open_files=asked))["process"]["rlimits"][0]["hard"]

    assert limit(256) == 256
    assert limit(4_096) == 1_024


def test_crun_leaves_cgroups_alone_and_does_not_see_the_tree_it_rejects() -> None:
    programs = oci.Programs(Path("/p/launch"), Path("/p/guest"), Path("/usr/bin/crun"))
    argv = oci.launch_argv(
        programs, MACHINE, NAME, HOME, LAYERS, [Path("/a/cgroup.procs"), Path("/b/cgroup.procs")]
    )
    assert argv == [
        *(
            "/p/launch",
            "-b",
            str(0x8000 * 65_536),
            "-l",
            "/t/rootfs",
            "-f",
            str(HOME / "files"),
            "-x",
            "/p/guest",
        ),
        *(
            "-m",
            "/srv",
            "-g",
            "/a/cgroup.procs",
            "-g",
            "/b/cgroup.procs",
            "-d",
            "/sys/fs/cgroup/unified",
            "--",
        ),
        *("/usr/bin/crun", "--cgroup-manager=disabled", "--root", str(HOME / "state")),
        *("run", "--bundle", str(HOME), "s-0123456789ab"),
    ]


def test_other_runtimes_join_the_cgroups_that_the_bundle_names() -> None:
    programs = oci.Programs(Path("/p/launch"), Path("/p/guest"), Path("/usr/sbin/runc"))
    argv = oci.launch_argv(programs, MACHINE, NAME, HOME, LAYERS, ())
    assert argv[argv.index("--") + 1 :][:3] == ["/usr/sbin/runc", "--root", str(HOME / "state")]
    assert "-d" not in argv
    assert config()["linux"]["cgroupsPath"] == f"/cloister/{NAME}"


def test_gvisor_leaves_cgroups_alone_and_sees_every_tree() -> None:
    way = Way(("--platform=systrap", "--ignore-cgroups"), "systrap")
    programs = oci.Programs(Path("/p/launch"), Path("/p/guest"), Path("/usr/bin/runsc"), way)
    assert not programs.manages_cgroups
    argv = oci.launch_argv(programs, MACHINE, NAME, HOME, LAYERS, [Path("/a/cgroup.procs")])
    assert "-d" not in argv
    assert argv[argv.index("-g") + 1] == "/a/cgroup.procs"
    assert argv[argv.index("--") + 1 :] == [
        *("/usr/bin/runsc", "--platform=systrap", "--ignore-cgroups", "--root", str(HOME / "state")),
        *("run", "--bundle", str(HOME), "s-0123456789ab"),
    ]


def test_the_guest_loads_its_filter_unless_the_plan_says_that_it_cannot() -> None:
    assert config()["process"]["args"] == ["/.cloister/guest"]
    assert config(way=Way(seccomp=False))["process"]["args"] == ["/.cloister/guest", "--no-seccomp"]


def test_only_an_old_gvisor_gets_the_library_that_its_programs_need() -> None:
    way = Way((), "ptrace", preload=True)
    programs = oci.Programs(Path("/p/launch"), Path("/p/guest"), Path("/r"), way, Path("/p/library"))
    argv = oci.launch_argv(programs, MACHINE, NAME, HOME, LAYERS, ())
    assert argv[argv.index("-p") + 1] == "/p/library"
    (mounted,) = [m for m in config(way=way)["mounts"] if m["destination"] == oci.PRELOAD]
    assert (mounted["source"], "ro" in mounted["options"]) == ("/srv/preload", True)

    async def no_root(name: str) -> Root:
        raise NotImplementedError(name)

    request = ContainerRequest(SandboxSpec(), None, no_root, Origin("default"))
    assert environment(request, way)["LD_PRELOAD"] == oci.PRELOAD
    assert "LD_PRELOAD" not in environment(request, Way())


def test_a_process_inside_gvisor_may_cost_the_host_more_than_one() -> None:
    asked = Quota(processes=100)
    assert oci.host_quota(asked, Way()) == asked
    for platform in ("systrap", "ptrace"):
        granted = oci.host_quota(asked, Way((), platform))
        assert granted.processes > 2 * asked.processes
        assert granted.memory_bytes == asked.memory_bytes
