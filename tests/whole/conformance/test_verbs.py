"""The verbs in this process: over an open `App`, and over a data directory alone."""

import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.whole.conformance.suites import verbs as suite
from tests.whole.conformance.suites.verbs import POLICY, PROMISES, Promise

from cloister.app.settings import read_settings
from cloister.app.tokens import Caller
from cloister.app.verbs.api import Verbs
from cloister.app.verbs.local import LocalVerbs, local_verbs
from cloister.app.wiring import App, open_app
from cloister.core.requests import Role
from cloister.testing.samples import busybox, layer, layout

pytestmark = pytest.mark.anyio

NEEDS_A_DRIVER = {suite.the_same_key_names_the_same_run, suite.a_request_is_checked_before_it_is_a_run}
NEEDS_A_SERVER = {
    suite.unknown_sandboxes_and_snapshots_are_named_as_such,
    suite.a_sandbox_is_changed_found_by_its_metadata_and_measured,
}


@dataclass
class LocalRig:
    app: App
    image: Path | None
    offline: bool = False

    def verbs(self, name: str, role: Role) -> Verbs:
        caller = Caller(name, role)
        return local_verbs(self.app.settings, caller) if self.offline else LocalVerbs(self.app, caller)


@pytest.fixture
async def rig(own_dir: Path, tmp_path: Path) -> AsyncIterator[LocalRig]:
    (own_dir / "config.toml").write_text(POLICY)
    tools = all(shutil.which(tool) for tool in ("skopeo", "busybox"))
    image = layout(tmp_path / "image", layer(*busybox()), Env=["PATH=/bin"]) if tools else None
    env = {"USER": "tester", "PATH": os.environ["PATH"], "CLOISTER_MODEL": "script:/nowhere.toml"}
    async with open_app(read_settings(env, own_dir), role="embedded") as app:
        yield LocalRig(app, image)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_verbs_over_an_app_keep_the_promise(promise: Promise, rig: LocalRig) -> None:
    await promise(rig)


@pytest.mark.parametrize(
    "promise",
    [promise for promise in PROMISES if promise not in NEEDS_A_DRIVER | NEEDS_A_SERVER],
    ids=lambda promise: promise.__name__,
)
async def test_verbs_over_a_data_directory_keep_the_promise(promise: Promise, rig: LocalRig) -> None:
    rig.offline = True
    await promise(rig)
