"""Settings of who may do what over HTTP."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from service.setting_groups.group import SettingGroup


class AccessSettings(SettingGroup):
    """Who may do what over HTTP (docs/access.md). Without any token the service answers on the loopback only."""

    tokens_file: str | None = Field(
        default=None,
        description=(
            "TOML file with the hashes of tokens and their rights; read again within a second of being replaced. "
            "Unset, with `access.tokens` unset too: everybody who reaches the loopback may do everything."
        ),
    )
    tokens: str | None = Field(
        default=None,
        description=(
            "The same entries as text, for a secret in the environment: `name:sha256:scopes:topics[:expiry]`, one a "
            "line or with `;` between them. Read at start only."
        ),
    )
    cors_origins: str = Field(
        default="",
        description=(
            "Origins of web pages elsewhere whose scripts may call the service, with spaces between them, such as "
            "`https://console.example.com`; empty = none. `*` is refused."
        ),
    )
    audit_max_bytes: int = Field(
        default=64 << 20,
        ge=1 << 16,
        description=(
            "Bytes of disk for the log of admin calls, about 500 each; above it the oldest eighth goes. Smaller "
            "remembers less."
        ),
    )

    @field_validator("cors_origins")
    @classmethod
    def _named(cls, value: str) -> str:
        for origin in value.split():
            parts = urlsplit(origin)
            if origin == "*" or parts.scheme not in ("http", "https") or not parts.hostname or "*" in origin:
                raise ValueError("an origin is named in full, such as https://console.example.com")
            if origin != f"{parts.scheme}://{parts.netloc}" or "@" in origin:
                raise ValueError("an origin is scheme, host and perhaps port, without a path or a / at its end")
        return value

    @property
    def origins(self) -> list[str]:
        """The origins of :attr:`cors_origins`, as browsers write them."""
        return [origin.lower() for origin in self.cors_origins.split()]
