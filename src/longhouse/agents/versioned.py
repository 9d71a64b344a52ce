"""The base of templates and tool descriptors, which the catalog keeps in versions and Pydantic validates."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

Owner = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@-]{1,128}$")]
SecretName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
"""The name of a secret that each process has; never the key itself."""


class Strict:
    """Unknown fields are refused: a policy that has no effect would mislead."""

    __slots__ = ()
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned(Strict):
    """A version of a name in the catalog."""

    name: str
    version: int = 1
    """Assigned by the catalog."""

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.version}"
