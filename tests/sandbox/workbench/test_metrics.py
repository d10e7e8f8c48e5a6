import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.app.workbench.metrics import ports_in

HEAD = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(local: str, state: str) -> bytes:
    return f"   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000\n".encode()


def test_the_ports_of_sockets_that_listen_are_found() -> None:
    table = HEAD + line("0100007F:1FBB", "0A") + line("0100007F:1FBC", "01") + line("0" * 32 + ":0050", "0A")
    assert list(ports_in(table)) == [8123, 80]


@pytest.mark.parametrize("local", ["x", "0100007F:FFFFF", "0100007F:-001", "0100007F:", ":00_1", ":١٢٣٤"])
def test_a_line_of_another_form_is_skipped(local: str) -> None:
    assert list(ports_in(HEAD + line(local, "0A"))) == []


@given(st.binary(max_size=2_000))
def test_no_table_of_a_guest_breaks_the_reader(table: bytes) -> None:
    assert all(0 <= port <= 65_535 for port in ports_in(table))
