from pathlib import Path

import pytest

from cloister.core.errors import UserError
from cloister.settings import FileSettings, read_settings


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
