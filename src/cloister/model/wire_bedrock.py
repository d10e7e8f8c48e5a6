"""Amazon's client for Bedrock: who asks, where, and that it never tries again by itself."""
# Amazon's libraries come without types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import NoRegionError
from botocore.session import Session
from botocore.tokens import FrozenAuthToken

from cloister.core.errors import UserError
from cloister.model.catalog import Amazon


class _KeySession(Session):
    """Signs with an API key of Bedrock's instead of an account's credentials."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def get_auth_token(self, **_: Any) -> FrozenAuthToken:
        return FrozenAuthToken(self._key)

    def get_credentials(self) -> None:
        return None


def client(key: str | None, who: Amazon, url: str | None, silence_seconds: float) -> Any:
    """Without a key, Amazon's own chain says who asks. Raises `UserError` (`no_region`)."""
    common: dict[str, Any] = {
        "read_timeout": silence_seconds,
        "connect_timeout": 10,
        "retries": {"total_max_attempts": 1},
    }
    if key:
        session = boto3.Session(botocore_session=_KeySession(key), region_name=who.region)
        common["signature_version"] = "bearer"
    else:
        session = boto3.Session(
            aws_access_key_id=who.access_key,
            aws_secret_access_key=who.secret_key,
            aws_session_token=who.session_token,
            region_name=who.region,
        )
    try:
        return session.client("bedrock-runtime", config=Config(**common), endpoint_url=url)
    except NoRegionError:
        raise UserError(
            "no_region", "Amazon Bedrock needs to know where: set AWS_REGION, e.g. to us-east-1."
        ) from None
