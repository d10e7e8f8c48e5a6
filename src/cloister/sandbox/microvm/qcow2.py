"""An empty copy-on-write disk, as bytes. Pure.

Only what an empty one needs of QEMU's format, version 3: a header, reference counts for the clusters it has, and
a table of nothing. Which disk is below it is said when it is opened, not in the file.
"""

import struct

CLUSTER_BITS = 15
"""Clusters of 32 KiB: what the first small write into one copies from below."""

_CLUSTER = 1 << CLUSTER_BITS
_HEADER = struct.Struct(">4sIQIIQIIQQIIQQQQII")
_MAGIC = b"QFI\xfb"
_VERSION = 3
_REFCOUNT_ORDER = 4  # sixteen bits each
_L2_ENTRIES = _CLUSTER // 8


def empty_disk(size: int) -> bytes:
    """A disk of `size` bytes of which nothing has been written yet."""
    entries = -(-size // (_CLUSTER * _L2_ENTRIES))
    table_clusters = -(-entries * 8 // _CLUSTER)
    refcount_table, refcount_block, table = 1, 2, 3
    used = table + table_clusters
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        *(0, 0),  # no name of a disk below
        CLUSTER_BITS,
        size,
        0,  # not encrypted
        *(entries, table * _CLUSTER),
        *(refcount_table * _CLUSTER, 1),
        *(0, 0),  # no snapshots inside
        *(0, 0, 0),  # no features
        _REFCOUNT_ORDER,
        _HEADER.size,
    )
    counts = struct.pack(f">{used}H", *[1] * used)
    clusters = [header, struct.pack(">Q", refcount_block * _CLUSTER), counts]
    return b"".join(cluster.ljust(_CLUSTER, b"\0") for cluster in clusters) + bytes(table_clusters * _CLUSTER)
