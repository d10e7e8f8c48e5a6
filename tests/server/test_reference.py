"""The page about the server names every route, close code and error status there is."""

import subprocess
import sys
from pathlib import Path

from cloister.server import ws
from cloister.server.app import SOCKET_ROUTES, openapi_document

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text(encoding="utf-8")


def test_every_http_route_is_on_the_page() -> None:
    paths = openapi_document()["paths"]
    routes = [f"`{method.upper()} {path}" for path, item in paths.items() for method in item]
    assert [route for route in routes if route not in PAGE] == []


def test_every_websocket_route_is_on_the_page() -> None:
    routes = [path.replace(":str", "").replace(":int", "") for route in SOCKET_ROUTES for path in route.paths]
    assert len(routes) == 6
    assert [route for route in routes if f"`WS {route}" not in PAGE] == []


def test_every_close_code_and_error_status_is_on_the_page() -> None:
    codes = [ws.NORMAL, ws.GOING_AWAY, ws.UNEXPECTED, ws.TRY_LATER]
    assert [code for code in codes if f"| {code} |" not in PAGE] == []
    operations = [each for item in openapi_document()["paths"].values() for each in item.values()]
    statuses = {status for operation in operations for status in operation["responses"]}
    assert [status for status in statuses if status not in PAGE] == []


def test_every_field_of_a_request_is_on_the_page() -> None:
    schemas = openapi_document()["components"]["schemas"]
    for name in (
        "NewRun",
        "NewSandbox",
        "SandboxChange",
        "SandboxMetrics",
        "NewSnapshot",
        "SnapshotInfo",
        "Fork",
        "NewCommand",
        "Move",
        "Remove",
        "MakeDirectory",
        "Exec",
        "Execute",
        "Executed",
    ):
        assert [field for field in schemas[name]["properties"] if f"`{field}`" not in PAGE] == []


def test_the_command_line_does_not_import_the_server() -> None:
    program = "import sys, cloister.cli; print([m for m in ('litestar', 'uvicorn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
