import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cloister.app.workbench.commands import Skipped, Spool, SpoolReader
from cloister.core.computer import Output


def everything(spool: Spool, offset: int, limit: int = 1_000) -> tuple[int, bytes]:
    """How much was skipped, and the rest."""
    skipped, data = 0, b""
    with SpoolReader(spool, offset) as reader:
        while piece := reader.read(limit):
            match piece:
                case Skipped(size):
                    skipped += size
                case Output(_, some):
                    assert 0 < len(some) <= limit
                    data += some
        assert reader.offset == spool.end
    return skipped, data


@given(sizes=st.lists(st.integers(1, 300), max_size=40), part=st.floats(0, 1), limit=st.integers(1, 400))
def test_from_any_offset_the_rest_is_read_or_said_to_be_skipped(
    sizes: list[int], part: float, limit: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        spool = Spool(Path(directory), 800)
        whole = b""
        for number, size in enumerate(sizes):
            data = bytes([number % 256]) * size
            whole += data
            spool.append(Output("out" if number % 2 else "err", data))
        assert spool.end == len(whole)
        offset = int(part * len(whole))
        skipped, data = everything(spool, offset, limit)
        assert skipped == max(0, spool.begin - offset)
        assert data == whole[offset + skipped :]
        assert sum(path.stat().st_size for path in Path(directory).iterdir()) < 8_000
        spool.close()
        again = Spool(Path(directory), 800)
        assert (again.begin, again.end) == (spool.begin, spool.end)
        assert everything(again, offset, limit) == (skipped, data)


def test_streams_keep_their_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    pieces = [Output("out", b"a"), Output("err", b"b"), Output("out", b"c")]
    for piece in pieces:
        spool.append(piece)
    with SpoolReader(spool, 0) as reader:
        assert [reader.read(10), reader.read(10), reader.read(10), reader.read(10)] == [*pieces, None]
        spool.append(Output("err", b"later"))
        assert reader.read(2) == Output("err", b"la")
        assert reader.read(9) == Output("err", b"ter")
    spool.close()


def test_an_overtaken_reader_gets_the_number_of_bytes_it_missed(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 800)
    spool.append(Output("out", b"x" * 100))
    with SpoolReader(spool, 0) as reader:
        assert reader.read(1_000) == Output("out", b"x" * 100)
        for _ in range(50):
            spool.append(Output("out", b"y" * 100))
        skipped = reader.read(1_000)
        # What it had open it reads on; what was dropped meanwhile it did not see.
        if isinstance(skipped, Output):
            skipped = reader.read(1_000)
        assert isinstance(skipped, Skipped)
        assert reader.offset == spool.begin
    spool.close()


def test_a_piece_that_was_cut_off_by_a_crash_ends_the_output(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(Output("out", b"whole"))
    spool.append(Output("out", b"half of it"))
    spool.close()
    (path,) = tmp_path.iterdir()
    for size in range(path.stat().st_size - 1, 10, -1):
        os.truncate(path, size)
        again = Spool(tmp_path)
        _, data = everything(again, 0)
        assert b"wholehalf of it".startswith(data)
        assert data.startswith(b"whole"[: again.end])
