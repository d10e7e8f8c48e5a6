from pathlib import Path

import pytest

from cloister.app.forges import forge_places
from cloister.app.settings import FileSettings, read_settings
from cloister.core.errors import UserError
from cloister.egress.credentials import Vault


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    settings = read_settings({"CLOISTER_DATA_DIR": str(tmp_path)})
    assert settings.data_dir == tmp_path
    assert settings.file == FileSettings()


def test_the_file_in_the_data_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "openai:some"\n[quota]\nmemory_bytes = 1000\n')
    settings = read_settings({"CLOISTER_DATA_DIR": str(tmp_path)})
    assert settings.file.model == "openai:some"
    assert settings.file.quota.memory_bytes == 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model = [", "is not valid TOML"),
        ("colour = 1", "colour"),
        ('port = "many"', "port"),
        ("[budget]\nsteps = 1.5", "budget.steps"),
        (f"[budget]\nsteps = {10**20}", "at most 1,000,000,000,000,000 steps"),
        ("[budgets.organisation]\ndollars = inf", "budgets.organisation.dollars"),
        ("[budgets]\nunpriced = inf", "budgets.unpriced"),
        (f"[stuck]\nrepeats = {10**20}", "stuck.repeats"),
        ('[models.entry."openai:x"]\ninput_price = inf\noutput_price = 1', "input_price"),
        ('[models.entry."openai:x"]\ninput_price = 1', "input_price and output_price"),
        ('[models.entry."opnai:x"]\nwindow = 2000', "'opnai:x': write PROVIDER:NAME"),
        ('[models.entry."openai"]\nwindow = 2000', "'openai': write PROVIDER:NAME"),
        ('[models.url]\nopnai = "http://x"', "'opnai', which is no provider"),
        ('[models.url]\nopenai = "localhost"', "models.url.openai must begin with http://"),
        ("[models]\ncode = []", "models.code names no model"),
        ('[models]\nplan = ["openai", ""]', "models.plan names no model"),
        ('[models.kind.docs]\ncode = ""', "models.kind.docs.code names no model"),
        ('[[models.repository]]\nmatch = "*"\nreview = " "', "models.repository.review names no model"),
    ],
)
def test_a_corrupt_file_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_settings({"CLOISTER_DATA_DIR": str(tmp_path)})
    assert caught.value.code == "bad_config"
    assert said in caught.value.message
    assert str(tmp_path / "config.toml") in caught.value.message


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError):
        read_settings({"CLOISTER_DATA_DIR": str(tmp_path)})


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        read_settings({"CLOISTER_CONFIG": str(tmp_path / "none.toml")})


def test_keys_come_from_the_environment_and_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "openai:some"')
    settings = read_settings(
        {
            "CLOISTER_DATA_DIR": str(tmp_path),
            "CLOISTER_MODEL": "script:x",
            "ANTHROPIC_API_KEY": "k",
            "OPENAI_API_KEY": "",
        }
    )
    assert settings.file.model == "script:x"
    assert settings.keys == {"anthropic": "k"}


def test_a_key_is_taken_without_the_line_break_that_its_file_had(tmp_path: Path) -> None:
    env = {"CLOISTER_DATA_DIR": str(tmp_path), "OPENAI_API_KEY": "sk-1\n", "MISTRAL_API_KEY": " \n"}
    settings = read_settings({**env, "OPENAI_BASE_URL": "http://localhost:1/v1", "AWS_REGION": "eu-west-1\n"})
    assert settings.keys == {"openai": "sk-1", "openai-responses": "sk-1", "compatible": "sk-1"}
    assert settings.amazon == {"region": "eu-west-1"}


def test_an_account_of_bitbucket_is_not_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[[forge]]\nhost = "bitbucket.org"\nfrom = "env:TOKEN"\npeople = { "@bea" = "env:BEA" }\n'
    )
    settings = read_settings({"USER": "tester"}, tmp_path)
    with pytest.raises(UserError, match="people has no @ there"):
        forge_places(settings, Vault(settings.variables))
