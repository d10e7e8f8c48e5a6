from cloister.sandbox.container.oci import Way, ways

OLD = """  -file-access value
      specifies which filesystem validation to use for the root mount: exclusive (default), shared.
  -host-uds value
      controls permission to access host Unix-domain sockets. Values: none|open|create|all, default: none
  -network value
      specifies which network to use: sandbox (default), host, none.
  -overlay
      DEPRECATED
  -platform string
      specifies which platform to use: ptrace (default), kvm. (default "ptrace")
"""
NEW = """  -directfs
      directly access the container filesystems from the sentry. Sentry runs with higher privileges. (default true)
  -network value
      specifies which network to use: sandbox (default), host, none.
  -overlay2 value
      wrap mounts with overlayfs. (default root:self)
  -platform string
      specifies which platform to use: systrap (default), ptrace, kvm. (default "systrap")
"""


def test_a_container_runtime_has_one_way() -> None:
    assert ways("container", "") == (Way(),)


def test_an_old_gvisor_is_given_no_flag_that_it_does_not_know() -> None:
    (filtered, unfiltered) = ways("gvisor", OLD)
    assert filtered.flags == (
        *("--platform=ptrace", "--ignore-cgroups", "--network=none"),
        *("--file-access=exclusive", "--host-uds=none"),
    )
    assert (filtered.platform, filtered.native, filtered.seccomp) == ("ptrace", False, True)
    assert filtered.preload, "its kernel refuses what `ls` always asks"
    assert unfiltered.seccomp is False, "the last resort, and it says so"


def test_a_new_gvisor_keeps_its_kernel_away_from_files_and_writes_where_a_fork_looks() -> None:
    found = ways("gvisor", NEW)
    assert [(way.platform, way.seccomp) for way in found] == [
        *(("systrap", True), ("ptrace", True)),
        *(("systrap", False), ("ptrace", False)),
    ]
    assert found[0].native
    assert not found[0].preload
    for way in found:
        assert {"--directfs=false", "--overlay2=none", "--network=none"} <= set(way.flags)


def test_a_program_that_describes_no_platform_offers_no_way() -> None:
    assert ways("gvisor", "hello") == ()
